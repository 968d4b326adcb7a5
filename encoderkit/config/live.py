"""Which keys that somebody set have no effect: by what options declare, by what was built."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from encoderkit.api import KINDS, Options, conditions
from encoderkit.config.layers import RULED, chosen_of, sublayers_of
from encoderkit.config.schema import SETTINGS, Chosen, Config
from encoderkit.config.text import show
from encoderkit.errors import Fault

SIZES = ("d_ff", "n_heads")  # that a part may read, or not
SILENT = ("norm=none", "position=none")  # as good where nobody asks for them
_NOWHERE = object()
_PLACE = re.compile(r"(model\.layers\[\d+\]\.\w+|model\.embed_norm|\w+)(?:\.(\w+))?")


def spoken(path: str, value: Any) -> Iterator[str]:
    """Yield a key and every key inside its value, such as model.layers[0].norm.eps."""
    yield path
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from spoken(f"{path}.{key}", inner)
    elif isinstance(value, list | tuple):
        for n, inner in enumerate(value):
            if isinstance(inner, Mapping):
                yield from spoken(f"{path}[{n}]", inner)


@dataclass(slots=True)
class Uses:
    """What a build found in use: the sizes that some part read, and the choices that stand."""

    sizes: set[str] = field(default_factory=set)
    _chosen: dict[int, Chosen] = field(default_factory=dict)

    def add(self, chosen: Chosen) -> None:
        """Note that a choice stands somewhere."""
        self._chosen[id(chosen)] = chosen

    def has(self, chosen: Chosen, option: str = "") -> bool:
        """Tell whether a choice, or an option of it, stands somewhere.

        A rule that changes some options of a choice keeps the others.
        """
        return any(_comes_from(each, chosen, option) for each in self._chosen.values())


def _comes_from(each: Chosen, chosen: Chosen, option: str) -> bool:
    """Tell whether `each` is a choice, or has kept this option of it."""
    same = each.entry is chosen.entry and chosen.changed is None
    return each is chosen or (same and each.changed is not None and option not in each.changed)


@dataclass(frozen=True, slots=True)
class _Key:
    """A key that somebody set: a choice, or an option of a choice or of a group of settings."""

    path: str
    name: str
    options: Options
    chosen: Chosen | None

    @property
    def where(self) -> str:
        """The key with its value, as one would type it."""
        return f"{self.path}={show(getattr(self.options, self.name))}" if self.name else self.path


def _keys(config: Config) -> Iterator[_Key]:
    """Yield the keys that somebody set, as far as they are choices and options."""
    chosen: dict[str, Any] = {kind: getattr(config, kind) for kind in KINDS} | chosen_of(config)
    for path in sorted(config.said):
        match = _PLACE.fullmatch(path)
        place, name = (match[1], match[2] or "") if match else ("", "")
        held = chosen.get(place)
        options = getattr(config, place) if place in SETTINGS else held and held.options
        if options is not None and (hasattr(options, name) or (held and not name)):
            yield _Key(path, name, options, held)


def dead(config: Config) -> list[Fault]:
    """Return a fault for each key that somebody set and that its own `when` says has no effect."""
    faults = []
    for key in _keys(config):
        specs = {spec.name: spec for spec in fields(key.options)}
        when = specs[key.name].metadata.get("when") if key.name else None
        reasons = [_against(when, parts, config) for parts in _where(key, config)] if when else []
        if reasons and all(reasons):
            path, _, _ = reasons[0].partition("=")
            problem = f"has no effect with {reasons[0]}."
            faults.append(Fault(key.where, problem, f"Leave it out, or choose another {path}."))
    return faults


def _where(key: _Key, config: Config) -> Iterator[Mapping[str, Chosen]]:
    """Yield the parts beside an option, everywhere that it stands; nowhere is for `unread`."""
    kind = key.chosen.entry.part.kind if key.chosen else ""
    if key.chosen is None or kind not in RULED or not config.model.layers:
        yield {kind: key.chosen} if key.chosen else {}
        return
    for layer in range(config.model.n_layers):
        for _, parts in sublayers_of(config, layer):
            if _comes_from(parts[kind], key.chosen, key.name):
                yield parts


def _against(when: str, parts: Mapping[str, Chosen], config: Config) -> str:
    """Return the first thing in a configuration that a condition is not true of, or nothing."""
    for each in conditions(when):
        group, _, name = each.path.partition(".")
        held = parts.get(group) or getattr(config, group)
        is_part = isinstance(held, Chosen)
        value = getattr(held.options if is_part else held, name, _NOWHERE)
        if is_part and name == "part":
            value = held.entry.part.name
        if not each.holds(value):
            if is_part and (name == "part" or value is _NOWHERE):
                return f"{group}={held.entry.part.name}"
            return f"{each.path}={show(value)}"
    return ""


def unread(config: Config, uses: Uses, told: set[str]) -> list[Fault]:
    """Return a fault for each key that somebody set and that nothing in a stack reads.

    `told` are the choices, such as norm=rmsnorm, that have their fault as a whole.
    """
    faults = []
    for key in _keys(config):
        if key.chosen is None:
            if key.path in {f"model.{name}" for name in SIZES} and key.name not in uses.sizes:
                problem = "has no effect: no part reads it."
                faults.append(Fault(key.where, problem, "Leave it out."))
            continue
        part = key.chosen.entry.part
        label = f"{part.kind}={part.name}"
        if part.kind not in RULED or part.target is None or label in (*SILENT, *told):
            continue
        if not uses.has(key.chosen, key.name):
            others = ", others do by model.layers" if config.model.layers else ""
            problem = f"has no effect: {part.name} stands in no layer{others}."
            faults.append(Fault(key.where, problem, "Leave it out."))
    return faults
