"""How two configurations differ: in their values, in their equations, and part by part."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from encoderkit.config.check import plain
from encoderkit.config.schema import Config
from encoderkit.nn.explain import Explanation, Row, explain


@dataclass(frozen=True, slots=True)
class Pair:
    """The rows of one place that differ; None where one configuration has nothing there."""

    a: Row | None
    b: Row | None


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between a and b, and the whole of both.

    `values` holds, by path, what stands in "a" and "b"; only one of them may have the path. Lines
    of `equation` begin with "- " for a and with "+ " for b.
    """

    values: dict[str, dict[str, Any]]
    equation: list[str]
    rows: list[Pair]
    a: Explanation
    b: Explanation


def difference(a: Config, b: Config, length: int = 128) -> Difference:
    """Return how two configurations differ.

    Units: `length` in tokens.

    Errors: those of `explain`.
    """
    one, two = explain(a, length), explain(b, length)
    lines = difflib.ndiff(one.equation, two.equation)
    changed = [line for line in lines if line.startswith(("- ", "+ "))]
    return Difference(_values(a, b), changed, _pairs(one.rows, two.rows), one, two)


def _values(a: Config, b: Config) -> dict[str, dict[str, Any]]:
    flat = {"a": _flat(plain(a)), "b": _flat(plain(b))}
    groups = list(plain(a))
    paths = dict.fromkeys([*flat["a"], *flat["b"]])
    found = {}
    for path in sorted(paths, key=lambda path: groups.index(path.partition(".")[0])):
        held = {side: values[path] for side, values in flat.items() if path in values}
        if len(held) == 1 or held["a"] != held["b"]:
            found[path] = held
    return found


def _flat(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the groups of a configuration opened, with dotted paths."""
    flat: dict[str, Any] = {}
    for group, node in tree.items():
        inside = node if isinstance(node, dict) else {"": node}
        flat |= {f"{group}.{key}".rstrip("."): value for key, value in inside.items()}
    return flat


def _pairs(a: Sequence[Row], b: Sequence[Row]) -> list[Pair]:
    """Return the rows of one slot and role together, in their order, where they differ."""
    one, two = _keyed(a), _keyed(b)
    pairs = [Pair(one.get(key), two.get(key)) for key in dict.fromkeys([*one, *two])]
    return [pair for pair in pairs if _content(pair.a) != _content(pair.b)]


def _keyed(rows: Sequence[Row]) -> dict[tuple[str, str, int], Row]:
    seen: Counter[tuple[str, str]] = Counter()
    keyed = {}
    for row in rows:
        place = row.slot, row.role
        seen[place] += 1
        keyed[*place, seen[place]] = row
    return keyed


def _content(row: Row | None) -> tuple[Any, ...] | None:
    """Return what a row says about its own parts; shares change with every other part."""
    return None if row is None else (row.part, row.shape, row.parameters, row.flops)
