"""One road from whatever a caller gives (strings, a mapping, typed options) to a `Config`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from encoderkit.api import KINDS, Options
from encoderkit.config.check import SHORT, check, inspect, settings, show
from encoderkit.config.live import spoken
from encoderkit.config.overrides import without_environment
from encoderkit.config.presets import Presets, defaults_of
from encoderkit.config.schema import SETTINGS, Config
from encoderkit.config.text import overgrown
from encoderkit.errors import ConfigError, Fault
from encoderkit.plugins import registry
from encoderkit.registry import Registry


def configure(*request: Any, config_dirs: Sequence[Path] = ()) -> Config:
    """Return the checked configuration that a request describes.

    A request is override strings ("norm=rmsnorm", "model.d_model=256"), or one mapping
    ({"norm": "rmsnorm", "model": {"d_model": 256}}, values may be typed options), a DictConfig, or
    a Config. Only strings need Hydra.

    Errors: ConfigError with every fault of the request.
    """
    if len(request) == 1 and isinstance(request[0], Config):
        return request[0]
    if len(request) == 1 and isinstance(request[0], DictConfig):
        request = (_container(request[0]),)
    if len(request) == 1 and isinstance(request[0], Mapping):
        _refuse_overgrown(request[0])
        tree = _expand(request[0], Presets(registry(), config_dirs))
        return check(tree, registry(), _said(request[0]))
    strings = [item for item in request if isinstance(item, str)]
    if len(strings) < len(request):
        kinds = ", ".join(type(item).__name__ for item in request)
        hint = 'Try build("norm=rmsnorm") or build({"norm": "rmsnorm"}).'
        raise ConfigError([Fault("request", f"strings, or one mapping; not {kinds}.", hint)])
    from encoderkit.config.compose import Composer  # needs Hydra, so only where it is used

    with Composer(registry(), config_dirs) as composer:
        return composer.configure(strings)


def _refuse_overgrown(tree: Any) -> None:
    if fault := overgrown(tree):
        raise ConfigError([fault])


def _container(request: DictConfig) -> Any:
    try:
        with without_environment():
            return OmegaConf.to_container(request, resolve=True)
    except (OmegaConfBaseException, RecursionError) as error:
        where = str(getattr(error, "full_key", "") or "request")
        problem = f"{(str(error) or 'cannot be read').splitlines()[0]}."
        raise ConfigError([Fault(where, problem)]) from error


def _said(request: Mapping[Any, Any]) -> frozenset[str]:
    """Return the keys that a mapping sets; a whole configuration, as config.yaml has it, none.

    Typed options set what is not at its default.
    """
    found: list[str] = []
    for key, value in request.items() if "schema" not in request else ():
        path = SHORT.get(str(key), str(key))
        if isinstance(value, Options):
            usual = defaults_of(type(value))
            own = {name: getattr(value, name) for name in usual}
            value = {k: v for k, v in own.items() if usual[k] not in ("???", v)}
        found += spoken(path, value)
    return frozenset(found)


def _expand(request: Mapping[Any, Any], presets: Presets) -> dict[str, Any]:
    """Return the full tree of a mapping: presets opened, groups not named at their defaults."""
    faults: list[Fault] = []
    tree = _undotted(request, presets.registry, faults)
    lost: set[str] = set()
    for group in (*KINDS, "model", "train"):
        given = tree.get(group, {})
        choice_key = "part" if group in KINDS else "preset"
        node = {choice_key: given} if isinstance(given, str) else given
        if not isinstance(node, Mapping):
            continue  # check names the fault
        name = node.get(choice_key, presets.default(group))
        known = list(presets.groups[group])
        unknown = not isinstance(name, str) or name not in known
        if unknown or (broken := presets.faults(group, name)):
            faults += [presets.unknown(group, name)] if unknown else broken
            lost.add(group)
            tree.pop(group, None)
            continue
        own = {key: value for key, value in node.items() if key != choice_key}
        tree[group] = presets.read(group, name) | own
    if "model" in tree:
        tree["model"] = presets.opened(tree["model"])
    if faults:
        _, more = inspect(tree, presets.registry)
        raise ConfigError(faults + [f for f in more if f.group not in lost])
    for seed in ("seed_init", "seed_data"):
        tree.setdefault(seed, tree.get("seed", 0))
    return tree


def _undotted(
    request: Mapping[Any, Any], registry: Registry, faults: list[Fault]
) -> dict[str, Any]:
    """Return a copy in which {"model.d_model": 8} is nested and typed options are mappings."""
    tree: dict[str, Any] = {}
    for key, value in request.items():
        group, _, leaf = SHORT.get(str(key), str(key)).partition(".")
        if isinstance(value, Options):
            value = _untyped(group, value, registry)
        choice = "part" if group in KINDS else "preset"
        if leaf or group in tree:
            held = tree.get(group, {})
            held = _mapping(held, choice)
            new = {leaf: value} if leaf else _mapping(value, choice)
            if twice := [f"{group}.{name}" for name in new if name in held]:
                faults.append(Fault(str(key), f"{twice[0]} was given before.", "Keep one."))
            tree[group] = held | new
        else:
            tree[group] = dict(value) if isinstance(value, Mapping) else value
    return tree


def _mapping(value: Any, choice: str) -> dict[str, Any]:
    """Return a group's value as a mapping; what is neither one nor a choice, as a wrong choice."""
    return dict(value) if isinstance(value, Mapping) else {choice: value}


def _untyped(group: str, options: Options, registry: Registry) -> dict[str, Any]:
    """Return typed options as a mapping, with the name of the one part that takes them."""
    if group in SETTINGS:
        return settings(options)
    values = dataclasses.asdict(options)
    fits = [
        entry.part.name
        for entry in registry
        if entry.part.kind == group and entry.part.options is type(options)
    ]
    if len(fits) == 1:
        return {"part": fits[0], **values}
    problem = f"{len(fits)} parts take these options ({', '.join(fits) or 'none'})."
    hint = f'Give a mapping: {{"{group}": {{"part": NAME, ...}}}}.'
    raise ConfigError([Fault(f"{group}={show(type(options).__name__)}", problem, hint)])
