"""The house rules that a tool can check, read from the syntax tree; nothing is imported here."""

from __future__ import annotations

import ast
import re
import statistics
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOMES = [ROOT, ROOT / "plugins", *sorted((ROOT / "plugins").glob("encoderkit-*"))]
PACKAGES = ["encoderkit", "encoderkit_builtin"]
PACKAGES += [home.name.replace("-", "_") for home in HOMES[2:]]

# A module imports only from floors below its own; modules of one floor may see each other.
FLOORS = [
    ["encoderkit", "encoderkit.ambient", "encoderkit.errors", "encoderkit.fs"],
    ["encoderkit.api"],
    ["encoderkit.registry", "encoderkit.plugins"],
    ["encoderkit.config"],
    ["encoderkit.nn.context", "encoderkit.nn.site"],
    ["encoderkit.nn.base"],
    ["encoderkit.nn.attention"],
    ["encoderkit.nn.stack", "encoderkit.nn.init", "encoderkit.nn.cost"],
    ["encoderkit.nn.model"],
    ["encoderkit.nn.build"],
    ["encoderkit.nn.explain", "encoderkit.nn.difference", "encoderkit.nn.weights"],
    ["encoderkit.nn"],
    ["encoderkit.data"],
    ["encoderkit.train"],
    ["encoderkit.sweep"],
    ["encoderkit.report"],
    ["encoderkit.testing", "encoderkit.cli", "encoderkit.__main__"],
]
# Of all modules, only these (and what is below them) import the package named on the left.
LOCAL = {
    "torch": [
        *["encoderkit.nn", "encoderkit.data", "encoderkit.train", "encoderkit.testing"],
        *PACKAGES[1:],
    ],
    "hydra": ["encoderkit.config.words", "encoderkit.config.compose", "encoderkit.config.launch"],
    "omegaconf": ["encoderkit.config"],
    "pluggy": ["encoderkit.api", "encoderkit.plugins"],
    "rich": ["encoderkit.cli"],
}
DOORS = {"encoderkit.api", "encoderkit.nn", "encoderkit.data", "encoderkit.testing"}


def sources() -> dict[str, Path]:
    """Return every module that ships, by its dotted name."""
    found = {}
    for home in HOMES:
        for package in PACKAGES:
            for path in sorted((home / package).rglob("*.py")):
                parts = path.relative_to(home).with_suffix("").parts
                found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = sources()
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in MODULES.items()}


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield what a tree imports, at any depth; a name taken from a package may be its module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module(target: str) -> str:
    """Return the module of ours that an import reaches, or the target itself."""
    parent = target.rpartition(".")[0]
    return parent if target not in MODULES and parent in MODULES else target


def inside(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def floor(name: str) -> int:
    """Return the floor that a module stands on: that of its longest listed prefix."""
    listed = [
        (len(home), n) for n, homes in enumerate(FLOORS) for home in homes if inside(name, home)
    ]
    return max(listed)[1]


EDGES = sorted({(name, module(t)) for name, tree in TREES.items() for t in imports(tree)})
OURS = [(a, b) for a, b in EDGES if b in MODULES]


def test_the_sources_are_found() -> None:
    assert {"encoderkit.api", "encoderkit_prmsnorm.norm"} <= set(MODULES)
    assert ("encoderkit.registry", "encoderkit.api") in OURS


def test_every_top_level_module_has_its_floor() -> None:
    listed = {home for homes in FLOORS for home in homes}
    near = {".".join(name.split(".")[:2]) for name in MODULES if inside(name, "encoderkit")}
    assert near - listed == set()


def test_modules_import_only_from_the_floors_below() -> None:
    # The root's own names are loaded when first used, so it alone may point upwards.
    core = [(a, b) for a, b in OURS if inside(a, "encoderkit") and a != "encoderkit"]
    assert [f"{a} -> {b}" for a, b in core if floor(b) > floor(a)] == []
    assert [f"{a} -> {b}" for a, b in core if not inside(b, "encoderkit")] == []


def test_only_build_sees_the_config_and_the_registry() -> None:
    seen: dict[str, set[str]] = {}
    for a, b in OURS:
        for side in ("encoderkit.config", "encoderkit.registry", "encoderkit.plugins"):
            if inside(a, "encoderkit.nn") and inside(b, side):
                seen.setdefault(a, set()).add(side)
    below = [name for name in seen if floor(name) < floor("encoderkit.nn.build")]
    assert below == []
    assert [a for a, sides in seen.items() if len(sides) > 1] in ([], ["encoderkit.nn.build"])


def test_there_are_no_import_cycles() -> None:
    # What imports nothing that is left, or is imported by nothing that is left, is on no cycle.
    left = [(a, b) for a, b in OURS if a != "encoderkit"]
    while trimmed := {a for a, _ in left} ^ {b for _, b in left}:
        left = [(a, b) for a, b in left if not {a, b} & trimmed]
    assert [f"{a} -> {b}" for a, b in left] == []


@pytest.mark.parametrize("package", LOCAL)
def test_a_foreign_package_stays_where_it_belongs(package: str) -> None:
    at = {a for a, b in EDGES if inside(b, package)}
    assert [name for name in at if not any(inside(name, home) for home in LOCAL[package])] == []


def test_what_is_imported_is_what_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = {re.split(r"[<>=,]", line)[0] for line in project["dependencies"]}
    roots = {b.partition(".")[0] for _, b in EDGES} - {*sys.stdlib_module_names, *PACKAGES}
    used = {{"hydra": "hydra-core", "yaml": "PyYAML"}.get(root, root) for root in roots}
    assert used - declared == set()
    assert declared - used <= {"numpy"}  # torch warns at import when it is missing
    extras = project["optional-dependencies"]
    wanted = {re.split(r"[<>=,]", line)[0] for lines in extras.values() for line in lines}
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text("utf-8"), re.M)
    assert (declared | wanted) - set(pinned) == set()


def test_parts_come_in_by_the_four_doors_only() -> None:
    guests = [(a, b) for a, b in EDGES if not inside(a, "encoderkit") and inside(b, "encoderkit")]
    assert guests
    assert [f"{a} -> {b}" for a, b in guests if b not in DOORS] == []


def test_catalogues_import_without_torch() -> None:
    at = {name for name, tree in TREES.items() if "API_VERSION" in names(tree)}
    assert "encoderkit_builtin.catalogue" in at and "encoderkit_prmsnorm" in at
    reached: set[str] = set()
    while at - reached:
        reached |= at
        at = {b for a, b in OURS if a in reached}
    assert [a for a, b in EDGES if a in reached and inside(b, "torch")] == []


def names(tree: ast.Module) -> set[str]:
    """Return the names assigned at the top of a module."""
    targets = [t for node in tree.body if isinstance(node, ast.Assign) for t in node.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def test_files_are_short() -> None:
    lengths = {name: len(path.read_text("utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name: n for name, n in lengths.items() if n > 400} == {}
    assert statistics.median(lengths.values()) <= 130


def test_functions_are_short() -> None:
    lengths = {}
    for name, tree in TREES.items():
        for node in functions(tree):
            lengths[f"{name}:{node.name}:{node.lineno}"] = (node.end_lineno or 0) - node.lineno + 1
    assert {name: n for name, n in lengths.items() if n > 80} == {}
    assert statistics.quantiles(lengths.values(), n=20)[-1] <= 45


def test_functions_take_few_parameters() -> None:
    counts = {}
    for name, tree in TREES.items():
        for node in functions(tree):
            listed = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            listed += [a for a in (node.args.vararg, node.args.kwarg) if a]
            own = [a for a in listed if a.arg not in ("self", "cls")]
            counts[f"{name}:{node.name}:{node.lineno}"] = len(own)
    assert {name: n for name, n in counts.items() if n > 8} == {}


def test_names_say_what_they_hold() -> None:
    vague = re.compile(r"utils?|helpers?|common|misc|managers?|mask\w*")
    words = {(name, part) for name in MODULES for part in name.split(".")}
    assert [name for name, word in words if vague.fullmatch(word)] == []


def test_the_top_level_is_small() -> None:
    made = {line.strip("/") for line in (ROOT / ".gitignore").read_text("utf-8").splitlines()}
    seen = [p.name for p in ROOT.iterdir() if not p.name.startswith(".") and p.name not in made]
    assert len(seen) <= 15, seen
