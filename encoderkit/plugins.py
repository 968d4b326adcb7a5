"""Find plugins, load them one by one, and leave out those that fail, by name."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, get_type_hints

import pluggy

import encoderkit
from encoderkit.api import (
    KINDS,
    VERSION,
    Hooks,
    Options,
    Part,
    Range,
    Traits,
    conditions,
    fit,
    is_option_type,
)
from encoderkit.errors import PluginError
from encoderkit.registry import (
    NOT_TEXT,
    Entry,
    Owner,
    Problem,
    Registry,
    conf_dir,
    preset_files,
)

GROUP = "encoderkit.plugins"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TARGET = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
_HOOKS = [name for name in vars(Hooks) if not name.startswith("__")]


@functools.cache
def registry() -> Registry:
    """Return the registry of all parts, loaded once per process."""
    return load(sorted(entry_points(group=GROUP), key=lambda e: (_distribution(e), e.name)))


def load(points: Iterable[EntryPoint]) -> Registry:
    """Return a registry with the built-in parts and those of the given entry points."""
    found = Registry()
    _add(found, "builtin", Owner("encoderkit", encoderkit.__version__), _builtin)
    if found.problems:
        raise PluginError(str(found.problems[0]))
    for point in points:
        version = point.dist.version if point.dist else "?"
        _add(found, point.name, Owner(_distribution(point), version), point.load)
    return found


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "?"


def _builtin() -> Any:
    """Import the built-in plugin; a bare checkout has it beside the package, in plugins/."""
    beside = Path(encoderkit.__file__).resolve().parent.parent / "plugins"
    if (beside / "encoderkit_builtin").is_dir() and str(beside) not in sys.path:
        sys.path.append(str(beside))
    return importlib.import_module("encoderkit_builtin.catalogue")


def _add(found: Registry, name: str, owner: Owner, importer: Callable[[], Any]) -> None:
    """Add one plugin whole, or note why it was left out."""
    stage = "import"
    try:
        # What a plugin prints must not end up in somebody's JSON, nor its filters in their program.
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
            module = importer()
            stage = "API version"
            _check_version(module)
            stage = "registration"
            # A manager of its own for each plugin: what one gets wrong cannot reach another.
            manager = pluggy.PluginManager("encoderkit")
            manager.add_hookspecs(Hooks)
            manager.register(module)
            manager.check_pending()
            _check_hooks(manager, module)
            stage = "hooks"
            parts = list(_returned(manager, "encoderkit_parts", Iterable, "a list of Part objects"))
            place = _returned(manager, "encoderkit_presets", str | Path, "one directory")
            presets = [Path(place).resolve()] if place != "" else []
        stage = "parts"
        taken = _taken(found)
        for part in parts:
            _check_part(part, taken)
            taken[part.kind, part.name] = f"this plugin's {part.target}"
        stage = "presets"
        for directory in presets:
            _check_presets(directory, taken)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also what derives from nothing else, such as SystemExit
        cause = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, PluginError):
            cause = f"{type(error).__name__}: {cause}"
        found.problems.append(Problem(name, owner, stage, cause))
        return
    found.entries |= {(part.kind, part.name): Entry(part, owner) for part in parts}
    found.presets += [(owner, directory) for directory in presets]


def _check_hooks(manager: pluggy.PluginManager, module: Any) -> None:
    marked = {caller.name for caller in manager.get_hookcallers(module) or ()}
    for hook in _HOOKS:
        if hasattr(module, hook) and hook not in marked:
            raise PluginError(f"{hook} is not marked with @hookimpl")
    if not marked:
        raise PluginError(f"it has none of the hooks: {', '.join(_HOOKS)}")


def _returned(manager: pluggy.PluginManager, hook: str, kind: Any, wanted: str) -> Any:
    """Return what a plugin's hook returns; an empty value of `kind` when it has no such hook."""
    caller = getattr(manager.hook, hook)
    if not caller.get_hookimpls():
        return ""
    values = caller() or [None]  # pluggy drops None
    if not isinstance(values[0], kind) or (kind is Iterable and isinstance(values[0], str)):
        raise PluginError(f"{hook} must return {wanted}, not {values[0]!r}")
    return values[0]


def _taken(found: Registry) -> dict[tuple[str, str], str]:
    """Return every choice there is, with whose it is."""
    taken = {key: f"a part of {entry.owner}" for key, entry in found.entries.items()}
    for owner, directory in [
        (Owner("encoderkit", encoderkit.__version__), conf_dir()),
        *found.presets,
    ]:
        for group, name, _ in preset_files(directory)[0]:
            taken[group, name] = f"a preset of {owner}"
    return taken


def _check_presets(directory: Path, taken: Mapping[tuple[str, str], str]) -> None:
    files, faults = preset_files(directory)
    if faults:
        raise PluginError(str(faults[0]))
    for group, name, file in files:
        if (group, name) in taken:
            raise PluginError(f"{file} would shadow {group}={name}, {taken[group, name]}")


def _check_version(module: Any) -> None:
    wrote = getattr(module, "API_VERSION", None)
    if wrote is None:
        raise PluginError(f"it states no API_VERSION; add API_VERSION = {VERSION}")
    if type(wrote) is not int or wrote != VERSION:
        raise PluginError(
            f"it was written for plugin API {wrote!r}, and this encoderkit "
            f"({encoderkit.__version__}) has {VERSION}; install versions that fit"
        )


def _check_part(part: Any, taken: Mapping[tuple[str, str], str]) -> None:
    if not isinstance(part, Part):
        raise PluginError(f"encoderkit_parts must return Part objects, not {part!r}")
    where = f"{part.kind}={part.name}"
    if part.kind not in KINDS:
        raise PluginError(f"{where}: the kind must be one of {', '.join(KINDS)}")
    if not _NAME.fullmatch(str(part.name)) or part.name in NOT_TEXT:
        raise PluginError(
            f"{where}: a name is lower-case letters, digits and underscores, "
            f"and none of {', '.join(NOT_TEXT)}"
        )
    if part.target is not None and not _TARGET.fullmatch(str(part.target)):
        raise PluginError(f"{where}: the target must be 'module:attribute', not {part.target!r}")
    if part.target is None and part.kind not in ("attention", "ffn"):
        raise PluginError(f"{where}: only attention and ffn may be taken away (target=None)")
    if not isinstance(part.summary, str):
        raise PluginError(f"{where}: the summary must be a line of text, not {part.summary!r}")
    if not isinstance(part.traits, Traits):
        raise PluginError(f"{where}: the traits must be a Traits, not {part.traits!r}")
    if not (isinstance(part.options, type) and issubclass(part.options, Options)):
        raise PluginError(f"{where}: its options must be a dataclass derived from api.Options")
    if "__dataclass_fields__" not in vars(part.options):
        raise PluginError(f"{where}: {part.options.__name__} lacks @dataclass")
    hints = get_type_hints(part.options)
    for spec in dataclasses.fields(part.options):
        _check_option(spec, hints[spec.name], f"{where}: option {spec.name}")
    if (part.kind, part.name) in taken:
        raise PluginError(f"{where} is already the name of {taken[part.kind, part.name]}")


def _check_option(spec: dataclasses.Field[Any], hint: Any, where: str) -> None:
    if not isinstance(spec.metadata.get("range"), Range):
        raise PluginError(f"{where} is not declared with option(...)")
    if spec.name == "part" or spec.name.startswith("_"):
        raise PluginError(f"{where}: no option is called `part`, or begins with '_'")
    if not is_option_type(hint):
        kinds = "bool, int, float, str, each also as X | None, list[X] and dict[str, X]"
        raise PluginError(f"{where}: its type must be made of {kinds}; not {hint}")
    if (when := spec.metadata["when"]) is not None:
        if not isinstance(when, str):
            raise PluginError(f"{where}: when={when!r} is no text")
        try:
            conditions(when)
        except ValueError as error:
            raise PluginError(f"{where}: {error}") from error
    default = spec.default
    if spec.default_factory is not dataclasses.MISSING:
        default = spec.default_factory()
    if default is dataclasses.MISSING:
        return
    try:
        fitted = fit(default, hint)
        refusal = "" if fitted is None else spec.metadata["range"].refusal(fitted)
    except TypeError as error:
        refusal = f"must be {error}"
    if "${" in str(default) or default == "???":
        refusal = "must not be a text that a configuration would replace"
    if refusal:
        raise PluginError(f"{where}: its default {default!r} {refusal}")
