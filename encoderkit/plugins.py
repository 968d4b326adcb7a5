"""Find plugins, load them one by one, and leave out those that fail, by name."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, get_type_hints

import pluggy

import encoderkit
from encoderkit.ambient import unchanged
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
from encoderkit.errors import ConfigError, Fault, PluginError
from encoderkit.registry import (
    NAME_RULE,
    Choice,
    Clash,
    Entry,
    Owner,
    Problem,
    Registry,
    conf_dir,
    is_part_name,
    preset_files,
)

GROUP = "encoderkit.plugins"
BUILT_IN = Owner("encoderkit", encoderkit.__version__)
_TARGET = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
_HOOKS = [name for name in vars(Hooks) if not name.startswith("__")]


@functools.cache
def registry() -> Registry:
    """Return the registry of all parts, loaded once per process."""
    return load(sorted(entry_points(group=GROUP), key=lambda e: (_distribution(e), e.name)))


def strict() -> Registry:
    """Return the registry, when every plugin is whole and every name is one package's.

    Errors: ConfigError with each plugin that was left out, and each name that several have.
    """
    found = registry()
    lines = [*found.problems, *found.clashes.values()]
    if lines:
        raise ConfigError([Fault("plugins", str(line)) for line in lines])
    return found


def load(points: Iterable[EntryPoint]) -> Registry:
    """Return a registry with the built-in parts and those of the given entry points."""
    found = Registry()
    ours = _read(found, _Plugin("builtin", BUILT_IN, "encoderkit_builtin"), _builtin)
    if ours is None:
        raise PluginError(str(found.problems[0]))
    plugins = []
    for point in points:
        owner = Owner(_distribution(point), point.dist.version if point.dist else "?")
        empty = _Plugin(point.name, owner, point.module.partition(".")[0])
        if (plugin := _read(found, empty, point.load)) is not None:
            plugins.append(plugin)
    _name(found, ours, _without_twins(found, plugins))
    return found


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "?"


def _builtin() -> Any:
    """Import the built-in plugin; a bare checkout has it beside the package, in plugins/."""
    beside = Path(encoderkit.__file__).resolve().parent.parent / "plugins"
    if (beside / "encoderkit_builtin").is_dir() and str(beside) not in sys.path:
        sys.path.append(str(beside))
    return importlib.import_module("encoderkit_builtin.catalogue")


@dataclasses.dataclass(slots=True)
class _Plugin:
    """A plugin, and what it has."""

    name: str
    owner: Owner
    package: str
    parts: list[Part] = dataclasses.field(default_factory=list)
    presets: list[Path] = dataclasses.field(default_factory=list)

    def choices(self) -> frozenset[Choice]:
        """Return every name that the plugin gives, as far as it is one."""
        listed = [(str(p.kind), str(p.name)) for p in self.parts if isinstance(p, Part)]
        for directory in self.presets:
            listed += [(group, name) for group, name, _ in preset_files(directory)[0]]
        return frozenset(listed)


def _read(found: Registry, plugin: _Plugin, importer: Callable[[], Any]) -> _Plugin | None:
    """Return one plugin with all it has, or note why it is left out."""
    stage = "import"
    known = None
    try:
        # What a plugin prints must not end up in somebody's JSON.
        with contextlib.redirect_stdout(sys.stderr):
            with unchanged(plugin.package):
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
            with unchanged(plugin.package):
                _call_hooks(manager, plugin)
        known = plugin.choices()
        stage = "parts"
        taken: dict[Choice, str] = {}
        for part in plugin.parts:
            _check_part(part, taken)
            taken[part.kind, part.name] = f"this plugin's {part.target}"
        stage = "presets"
        for directory in plugin.presets:
            _check_presets(directory, taken)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also what derives from nothing else, such as SystemExit
        cause = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, PluginError):
            cause = f"{type(error).__name__}: {cause}"
        found.problems.append(Problem(plugin.name, plugin.owner, stage, cause, known))
        return None
    return plugin


def _call_hooks(manager: pluggy.PluginManager, plugin: _Plugin) -> None:
    """Ask a plugin what it has."""
    parts = _returned(manager, "encoderkit_parts", Iterable, "a list of Part objects")
    plugin.parts = list(parts)
    place = _returned(manager, "encoderkit_presets", str | Path, "one directory")
    plugin.presets = [Path(place).resolve()] if place != "" else []


def _without_twins(found: Registry, plugins: list[_Plugin]) -> list[_Plugin]:
    """Return the plugins without those that share a name with another of their own package."""
    alone = []
    for plugin in plugins:
        own = plugin.choices()
        for other in plugins:
            both = own & other.choices() if other is not plugin else own - own
            if both and other.owner == plugin.owner:
                group, name = min(both)
                cause = f"{group}={name} is also in plugin {other.name} of the same package"
                found.problems.append(Problem(plugin.name, plugin.owner, "names", cause, own))
                break
        else:
            alone.append(plugin)
    return alone


def _name(found: Registry, ours: _Plugin, plugins: list[_Plugin]) -> None:
    """Give every choice the name that it has whatever the order of plugins."""
    reserved = ours.choices() | {(group, name) for group, name, _ in preset_files(conf_dir())[0]}
    homes: dict[Choice, list[Owner]] = {}
    for plugin in plugins:
        for key in sorted(plugin.choices()):
            homes.setdefault(key, []).append(plugin.owner)
    for key, owners in sorted(homes.items()):
        if len(owners) > 1 or key in reserved:
            those = sorted(owners, key=lambda owner: owner.qualified(""))
            found.clashes[key] = Clash(*key, tuple(those), key in reserved)
    for plugin in [ours, *plugins]:
        for part in plugin.parts:
            name = found.named(plugin.owner, part.kind, part.name)
            entry = Entry(dataclasses.replace(part, name=name), plugin.owner)
            found.entries[part.kind, name] = entry
        found.presets += [(plugin.owner, directory) for directory in plugin.presets]


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


def _check_presets(directory: Path, taken: Mapping[Choice, str]) -> None:
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


def _check_part(part: Any, taken: Mapping[Choice, str]) -> None:
    if not isinstance(part, Part):
        raise PluginError(f"encoderkit_parts must return Part objects, not {part!r}")
    where = f"{part.kind}={part.name}"
    if part.kind not in KINDS:
        raise PluginError(f"{where}: the kind must be one of {', '.join(KINDS)}")
    if not is_part_name(str(part.name)):
        raise PluginError(f"{where}: {NAME_RULE}")
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
