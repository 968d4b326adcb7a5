"""Find plugins, load them one by one, and leave out those that fail, by name."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pluggy

import encoderkit
from encoderkit.api import KINDS, VERSION, Hooks, Options, Part
from encoderkit.errors import PluginError
from encoderkit.registry import Entry, Owner, Problem, Registry

GROUP = "encoderkit.plugins"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


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
        module = importer()
        stage = "API version"
        _check_version(module)
        stage = "registration"
        # A manager of its own for each plugin: what one gets wrong cannot reach another.
        manager = pluggy.PluginManager("encoderkit")
        manager.add_hookspecs(Hooks)
        manager.register(module)
        manager.check_pending()
        stage = "hooks"
        parts = [part for parts in manager.hook.encoderkit_parts() for part in parts]
        presets = [Path(directory) for directory in manager.hook.encoderkit_presets()]
        stage = "parts"
        for part in parts:
            _check_part(part, found)
    except (Exception, SystemExit) as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, PluginError):
            cause = f"{type(error).__name__}: {cause}"
        found.problems.append(Problem(name, owner, stage, cause))
        return
    found.entries |= {(part.kind, part.name): Entry(part, owner) for part in parts}
    found.presets += [(owner, directory) for directory in presets]


def _check_version(module: Any) -> None:
    wrote = getattr(module, "API_VERSION", None)
    if wrote != VERSION:
        raise PluginError(
            f"it was written for plugin API {wrote}, and this encoderkit "
            f"({encoderkit.__version__}) has {VERSION}; install versions that fit"
        )


def _check_part(part: Any, found: Registry) -> None:
    if not isinstance(part, Part):
        raise PluginError(f"encoderkit_parts must return Part objects, not {part!r}")
    where = f"{part.kind}={part.name}"
    if part.kind not in KINDS:
        raise PluginError(f"{where}: the kind must be one of {', '.join(KINDS)}")
    if not _NAME.fullmatch(part.name):
        raise PluginError(f"{where}: a name is lower-case letters, digits and underscores")
    if not (isinstance(part.options, type) and issubclass(part.options, Options)):
        raise PluginError(f"{where}: its options must be a dataclass derived from api.Options")
    if "__dataclass_fields__" not in vars(part.options):
        raise PluginError(f"{where}: {part.options.__name__} lacks @dataclass")
    if part.target is not None and ":" not in part.target:
        raise PluginError(f"{where}: the target must be 'module:attribute', not {part.target!r}")
    if part.target is None and part.kind not in ("attention", "ffn"):
        raise PluginError(f"{where}: only attention and ffn may be taken away (target=None)")
    other = found.entries.get((part.kind, part.name))
    if other is not None:
        raise PluginError(f"{where} is already the name of a part of {other.owner}")
