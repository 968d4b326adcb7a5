"""The points of a sweep: what its axes span, zipped, one at a time, in part, and put together."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from encoderkit.config.check import SHORT, checked_settings
from encoderkit.config.compose import Composer
from encoderkit.config.schema import SweepOptions
from encoderkit.config.words import MOST_POINTS
from encoderkit.errors import ConfigError, Fault, nearest
from encoderkit.registry import GROUPS
from encoderkit.sweep.axes import key

Point = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """Points as plain overrides; the keys that vary; which of them are one factor."""

    points: list[Point]
    axes: list[str]
    factors: list[tuple[str, ...]]
    excluded: int
    sweep: SweepOptions


def grid(composer: Composer, overrides: Sequence[str]) -> Grid:
    """Return the points of a request, in the order they were asked for.

    The `sweep` node of the request says how: `zip`, `one_at_a_time`, `also`, `optional`, `exclude`.

    Errors: ConfigError with every override that is malformed, and with what has no effect.
    """
    columns = composer.columns(composer.spelled(overrides))
    fixed = [column[0] for column in columns if len(column) == 1]
    sweep = _settings(composer, fixed)
    blocks, faults = _blocks(columns, sweep.zip)
    _raise(faults)
    _count(blocks)
    points = (
        _one_at_a_time(blocks, sweep.baseline)
        if sweep.one_at_a_time
        else list(itertools.product(*blocks))
    )
    found = [tuple(itertools.chain(*point)) for point in points]
    axes = [key(column[0]) for column in columns if len(column) > 1]
    for text in sweep.also:
        more, keys = _also(composer, fixed, text)
        found += more
        axes += keys
    found = [tuple(dict.fromkeys(point)) for point in found]
    found = _applied(composer, found, sweep.optional)
    kept = _without(composer, found, sweep.exclude)
    factors = [tuple(map(key, block[0])) for block in blocks if len(block) > 1]
    zipped = {each for factor in factors for each in factor}
    factors += [(each,) for each in dict.fromkeys(axes) if each not in zipped]
    return Grid(kept, list(dict.fromkeys(axes)), factors, len(found) - len(kept), sweep)


def _raise(faults: Sequence[Fault]) -> None:
    if faults:
        raise ConfigError(list(faults))


def _settings(composer: Composer, fixed: Sequence[str]) -> SweepOptions:
    """Return the sweep's settings, which no axis can change.

    Errors: ConfigError.
    """
    settings = checked_settings("sweep", composer.values(fixed).get("sweep", {}))
    if not isinstance(settings, SweepOptions):
        raise TypeError(f"settings of a sweep, not {type(settings).__name__}")
    return settings


def _blocks(columns: Sequence[Point], zips: Sequence[str]) -> tuple[list[list[Point]], list[Fault]]:
    """Return what varies together, in order: a list of values for each, a value being a point."""
    by_key = {key(column[0]): column for column in columns}
    faults: list[Fault] = []
    groups: dict[str, list[str]] = {}
    for text in zips:
        names = [name.strip() for name in text.split("+")]
        where = f"sweep.zip=[{text}]"
        found = [name for name in names if len(by_key.get(name, ())) > 1]
        if len(names) < 2 or len(set(names)) < len(names):
            hint = "Try sweep.zip=[norm+placement]."
            faults.append(Fault(where, "joins two axes or more with '+'.", hint))
        elif len(found) < len(names):
            lost = next(name for name in names if name not in found)
            problem = f"{lost} has not several values here."
            known = [name for name, column in by_key.items() if len(column) > 1]
            faults.append(Fault(where, problem, nearest(lost, known)))
        elif len({len(by_key[name]) for name in names}) > 1:
            counts = ", ".join(f"{name} has {len(by_key[name])}" for name in names)
            problem = f"axes that move together have as many values each: {counts}."
            faults.append(Fault(where, problem, "Give each as many."))
        elif twice := [name for name in names if name in groups]:
            faults.append(Fault(where, f"{twice[0]} moves with others already.", "Join them."))
        groups |= dict.fromkeys(names, names)
    blocks: dict[tuple[str, ...], list[Point]] = {}
    for name in by_key if not faults else ():
        together = tuple(groups.get(name, [name]))
        blocks.setdefault(together, list(zip(*(by_key[n] for n in together), strict=True)))
    return list(blocks.values()), faults


def _count(blocks: Sequence[Sequence[Point]]) -> None:
    """Refuse a grid that cannot be planned.

    Errors: ConfigError.
    """
    if math.prod(map(len, blocks)) > MOST_POINTS:
        axes = " ".join(f"{key(text)}=..." for b in blocks if len(b) > 1 for text in b[0])
        problem = f"spans more than the {MOST_POINTS} points that can be planned."
        raise ConfigError([Fault(axes, problem, "Take fewer values.")])


def _one_at_a_time(
    blocks: Sequence[Sequence[Point]], baseline: str | None
) -> list[tuple[Point, ...]]:
    """Return the baseline's point, and each that differs from it in one place.

    The baseline has the values that it names, and else the first ones.
    """
    words = set((baseline or "").split())
    first = [next((v for v in block if set(v) <= words), block[0]) for block in blocks]
    points = [tuple(first)]
    for place, block in enumerate(blocks):
        others = [value for value in block if value != first[place]]
        points += [(*first[:place], value, *first[place + 1 :]) for value in others]
    return points


def _also(composer: Composer, fixed: Sequence[str], text: str) -> tuple[list[Point], list[str]]:
    """Return the points of one further grid, and the keys by which they differ from the first.

    Errors: ConfigError.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError([Fault(f"sweep.also=[{text}]", f"{error}.", "Close it.")]) from error
    if not words:
        raise ConfigError([Fault("sweep.also", "names no override.", "Remove it.")])
    words = composer.spelled(words)
    own = [SHORT.get(key(word), key(word)) for word in words]
    columns = composer.columns([*(o for o in fixed if key(o) not in own), *words])
    _count([[(value,) for value in column] for column in columns])
    return list(itertools.product(*columns)), own


def _applied(composer: Composer, points: list[Point], optional: Sequence[str]) -> list[Point]:
    """Return the points without the optional overrides of what their parts do not have.

    Errors: ConfigError for a key that nobody gives, or that no point has.
    """
    if not optional:
        return points
    used: set[str] = set()
    found = []
    for point in points:
        rest = [text for text in point if key(text) not in optional]
        values = composer.values(rest)
        kept = [text for text in point if text in rest or _at(values, key(text)) is not _NOWHERE]
        used |= {key(text) for text in kept}
        found.append(tuple(kept))
    given = {key(text) for point in points for text in point}
    faults = []
    for name in optional:
        if name not in used:
            where = f"sweep.optional=[{name}]"
            if name in given:
                faults.append(Fault(where, "no variant has it.", "Remove it, and its values."))
            else:
                faults.append(Fault(where, "is not among the overrides.", nearest(name, given)))
    _raise(faults)
    return found


def _without(composer: Composer, points: list[Point], exclude: Sequence[str]) -> list[Point]:
    """Return the points that no condition holds for; all words of a condition must hold.

    Errors: ConfigError for a condition without effect, or when nothing is left.
    """
    if not exclude:
        return points
    conditions = {text: _condition(text, composer) for text in exclude}
    keys = {path: text for text, words in conditions.items() for path, _, _ in words}
    used: set[str] = set()
    kept = []
    for point in points:
        values = composer.values(point)
        keys = {path: text for path, text in keys.items() if _at(values, path) is _NOWHERE}
        choices = {key(text): text.partition("=")[2] for text in point if key(text) in GROUPS}
        held = {text for text, words in conditions.items() if _holds(words, values, choices)}
        used |= held
        kept += [] if held else [point]
    faults = [
        Fault(f"sweep.exclude=[{text}]", f"no point has {path}.", "Correct it, or remove it.")
        for path, text in keys.items()
    ]
    faults += [
        Fault(f"sweep.exclude=[{text}]", "leaves no point out.", "Correct it, or remove it.")
        for text in exclude
        if text not in used and text not in keys.values()
    ]
    if not kept and not faults:
        faults.append(Fault("sweep.exclude", "leaves every point out.", "Leave one."))
    _raise(faults)
    return kept


def _condition(text: str, composer: Composer) -> list[tuple[str, bool, str]]:
    """Return the words of a condition: key, whether it must be so, value.

    Errors: ConfigError, also for a choice that there is not.
    """
    found, faults = [], []
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals or not name.rstrip("!"):
            problem = f"{word} is neither key=value nor key!=value."
            hint = "Try sweep.exclude=['norm=batchnorm placement!=pre']."
            raise ConfigError([Fault(f"sweep.exclude=[{text}]", problem, hint)])
        path = name.rstrip("!")
        known = composer.presets.groups.get(path, {})
        if path in GROUPS and value not in known:
            fault = composer.presets.unknown(path, value)
            faults.append(replace(fault, where=f"sweep.exclude=[{text}]: {fault.where}"))
        found.append((path, not name.endswith("!"), value))
    _raise(faults)
    return found


_NOWHERE = object()


def _at(values: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path, or _NOWHERE."""
    here: Any = values
    for name in path.split("."):
        if not isinstance(here, Mapping) or name not in here:
            return _NOWHERE
        here = here[name]
    return here


def _holds(
    words: Iterable[tuple[str, bool, str]], values: Mapping[str, Any], choices: Mapping[str, str]
) -> bool:
    return all(_is(path, value, values, choices) == wanted for path, wanted, value in words)


def _is(path: str, value: str, values: Mapping[str, Any], choices: Mapping[str, str]) -> bool:
    """Tell whether a path has a value: a choice by its name or its part, an option as typed."""
    here = _at(values, path)
    if path in GROUPS:
        part = here.get("part") if isinstance(here, Mapping) else None
        return value in (choices.get(path), part)
    if isinstance(here, bool) or here is None:
        return value.lower() == {True: "true", False: "false", None: "null"}[here]
    try:
        return float(value) == float(here)
    except (TypeError, ValueError):
        return str(here) == value
