"""The one-factor guard: in what a variant differs from the baseline beside what was asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from encoderkit.config.check import show
from encoderkit.config.overrides import leaves
from encoderkit.registry import GROUPS
from encoderkit.sweep.axes import key
from encoderkit.sweep.variant import Variant, what

_LAYER = re.compile(r"^layers\.\d+\.")
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """How a variant stands to the baseline.

    `factors` are the axes in which it differs, those that move together as one. `comes_with` is
    what its choices bring by their definition; `confounded` what differs beyond that. Mismatches
    are relative, of the stack without embedding and head: 0.01 is 1 % more.
    """

    factors: tuple[str, ...] = ()
    comes_with: tuple[str, ...] = ()
    confounded: tuple[str, ...] = ()
    parameters: float = 0.0
    flops: float | None = 0.0


def against(
    variant: Variant,
    baseline: Variant,
    factors: Sequence[tuple[str, ...]],
    matched: Sequence[str] = (),
) -> Against:
    """Return how a variant stands to the baseline; `matched` are the keys that matching has set."""
    asked = _asked(variant, baseline) - set(matched)
    said = tuple("+".join(factor) for factor in factors if asked & set(factor))
    comes: list[str] = []
    confounded: list[str] = []
    for path, here, there in _differences(what(variant), what(baseline)):
        text = f"{path}: {_text(there)} -> {_text(here)}"
        sort = _sort(path, here, there, asked)
        if path in matched:
            comes.append(f"{text} (matched)")
        elif sort == "comes with":
            comes.append(text)
        elif sort == "confounded":
            confounded.append(text)
    comes += _structure(variant, baseline)
    spent, base = variant.facts.flops, baseline.facts.flops
    return Against(
        factors=said,
        comes_with=tuple(comes),
        confounded=tuple(confounded),
        parameters=_ratio(variant.facts.stack, baseline.facts.stack),
        flops=None if spent is None or base is None else _ratio(spent, base),
    )


def _ratio(here: float, there: float) -> float:
    return here / there - 1 if there else float(here != 0)


def _asked(variant: Variant, baseline: Variant) -> set[str]:
    """Return the keys whose words differ, or that only one of the two has."""
    words = [dict((key(text), text) for text in each.point) for each in (variant, baseline)]
    names = words[0].keys() | words[1].keys()
    return {name for name in names if words[0].get(name) != words[1].get(name)}


def _differences(
    here: Mapping[str, Any], there: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield every path with other values, _MISSING where one side has none."""
    ours, theirs = dict(leaves(here)), dict(leaves(there))
    for path in dict.fromkeys([*theirs, *ours]):
        pair = ours.get(path, _MISSING), theirs.get(path, _MISSING)
        if pair[0] != pair[1]:
            yield path, *pair


def _sort(path: str, here: Any, there: Any, asked: set[str]) -> str:
    """Tell what a difference is: asked for, what comes with a choice, or confounded.

    A choice defines its part, its words (an activation, a layout) and the options that the other
    part does not have. A number or a switch that both have is a setting of its own.
    """
    group = path.partition(".")[0]
    if any(path == name or path.startswith(f"{name}.") for name in asked - set(GROUPS)):
        return "asked"
    if group not in asked and "experiment" not in asked:
        return "comes with"  # what follows from another value, such as d_ff from d_model
    if path == f"{group}.part":
        return "asked"
    if group in ("model", "train") or _MISSING in (here, there):
        return "comes with"
    return "comes with" if isinstance(here, str) and isinstance(there, str) else "confounded"


def _structure(variant: Variant, baseline: Variant) -> Iterator[str]:
    """Yield the parameters that one alone has, or that have another shape, and gains of branches.

    Layers are named together: what differs in one differs in others.
    """
    ours, theirs = (_tensors(each.facts.shapes) for each in (variant, baseline))
    for name in dict.fromkeys([*theirs, *ours]):
        if name not in ours:
            yield f"without {name}"
        elif name not in theirs:
            yield f"with {name} {_shapes(ours[name])}"
        elif ours[name] != theirs[name]:
            yield f"{name}: {_shapes(theirs[name])} -> {_shapes(ours[name])}"
    gains = variant.facts.gains - baseline.facts.gains
    yield from (f"branches start {gain:.3g} times as large" for gain in sorted(gains))


def _tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, set[tuple[int, ...]]]:
    found: dict[str, set[tuple[int, ...]]] = {}
    for path, shape in shapes.items():
        found.setdefault(_LAYER.sub("", path), set()).add(shape)
    return found


def _shapes(held: set[tuple[int, ...]]) -> str:
    return ", ".join(map(str, sorted(held)))


def _text(value: Any) -> str:
    return "none" if value is _MISSING else show(value)
