"""The one-factor guard: in what a variant differs from the baseline beside what was asked for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from encoderkit.api import KINDS
from encoderkit.config.check import show
from encoderkit.config.overrides import leaves
from encoderkit.sweep.axes import key
from encoderkit.sweep.variant import Variant, what

_LAYER = re.compile(r"^layers\.\d+\.")
# Where a part is chosen, and its name there.
_KIND = "|".join(KINDS)
_PLACE = re.compile(rf"({_KIND}|model\.embed_norm|model\.layers\[\d+\]\.(?:{_KIND}))\.(?:part$)?")
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
    found = list(_differences(what(variant), what(baseline)))
    count = Counter(_scope(path, asked) for path, _, _ in found if path not in matched)
    count.pop("", None)
    for path, here, there in found:
        text = f"{path}: {_text(there)} -> {_text(here)}"
        alone = count[_scope(path, asked)] == 1  # all in which two choices differ
        sort = "asked" if alone else _sort(path, here, there, asked)
        if path in matched:
            comes.append(f"{text} (matched)")
        elif sort == "comes with":
            comes.append(text)
        elif sort == "confounded":
            confounded.append(text)
    comes += _structure(variant, baseline)
    confounded += _decay(variant, baseline)
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
    ours, theirs = dict(leaves(_opened(here))), dict(leaves(_opened(there)))
    for path in dict.fromkeys([*theirs, *ours]):
        pair = ours.get(path, _MISSING), theirs.get(path, _MISSING)
        if pair[0] != pair[1]:
            yield path, *pair


def _opened(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree in which each rule of `model.layers` is a node of its own."""
    model = dict(tree["model"])
    rules = model.pop("layers")
    return {**tree, "model": model | {f"layers[{n}]": rule for n, rule in enumerate(rules)}}


def _scope(path: str, asked: set[str]) -> str:
    """Return the asked-for choice that a path belongs to: norm, model.layers[0].norm, experiment.

    It is empty for what was asked for by itself, and for what follows from another value.
    """
    place = _PLACE.match(path)
    choice = place[1] if place else path.partition(".")[0]
    names = _names(path, asked)
    if any(len(name) > len(choice) for name in names):
        return ""
    return choice if names else "experiment" if "experiment" in asked else ""


def _names(path: str, asked: set[str]) -> list[str]:
    """Return what was asked for and has the path in it."""
    return [n for n in asked if path == n or path.startswith((f"{n}.", f"{n}["))]


def _sort(path: str, here: Any, there: Any, asked: set[str]) -> str:
    """Tell what a difference is: asked for, what comes with a choice, or confounded.

    A choice defines its part, its words (an activation, a layout) and the options that the other
    part does not have. A number or a switch that both have is a setting of its own.
    """
    scope = _scope(path, asked)
    if _PLACE.fullmatch(path) and _names(path, asked):
        return "asked"
    if _MISSING in (here, there) and _PLACE.match(path):
        return "comes with"
    if not scope:
        # What follows from another value, such as d_ff from d_model, comes with it.
        return "asked" if _names(path, asked) else "comes with"
    if scope in ("model", "train"):
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
    gains = [each.facts.gains - {1.0} or {1.0} for each in (baseline, variant)]
    if gains[0] != gains[1]:
        before, now = (", ".join(f"{gain:.3g}" for gain in sorted(each)) for each in gains)
        yield f"gain of branches at the start: {before} -> {now}"


def _decay(variant: Variant, baseline: Variant) -> list[str]:
    """Return the parameters that both have, and that weight decay reaches in one alone."""
    ours, theirs = variant.facts, baseline.facts
    found = [
        f"weight decay of {_LAYER.sub('', path)}: {show(path in theirs.decayed)} -> "
        f"{show(path in ours.decayed)}"
        for path, shape in ours.shapes.items()
        if theirs.shapes.get(path) == shape and (path in ours.decayed) != (path in theirs.decayed)
    ]
    return list(dict.fromkeys(found))


def _tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, set[tuple[int, ...]]]:
    found: dict[str, set[tuple[int, ...]]] = {}
    for path, shape in shapes.items():
        found.setdefault(_LAYER.sub("", path), set()).add(shape)
    return found


def _shapes(held: set[tuple[int, ...]]) -> str:
    return ", ".join(map(str, sorted(held)))


def _text(value: Any) -> str:
    return "none" if value is _MISSING else show(value)
