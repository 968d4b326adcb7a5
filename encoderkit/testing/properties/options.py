"""Options: nonsense is refused before anything is built, and none is without effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from encoderkit.api import KINDS, Range
from encoderkit.config.check import inspect, plain, show
from encoderkit.errors import EncoderkitError
from encoderkit.nn import Out
from encoderkit.plugins import registry
from encoderkit.registry import Registry
from encoderkit.testing.case import Case, finite, require
from encoderkit.testing.examine import proves
from encoderkit.testing.properties.inits import drawn
from encoderkit.testing.properties.tasks import contents
from encoderkit.testing.subject import STREAM, Subject

# 18 tokens: two of them are as far apart as a distance that t5's buckets do not tell one by one.
CASE = Case(lengths=(18, 0, 2), width=8)


def _none(subject: Subject) -> str:
    return "" if dataclasses.fields(subject.part.options) else "it has no options"


def _refused(subject: Subject, name: str, value: Any) -> bool:
    """Tell whether the check of a configuration refuses a value, and names its option."""
    tree = plain(subject.config)
    tree[subject.kind] = {**tree[subject.kind], name: value}
    known = {**registry().entries, (subject.kind, subject.part.name): subject.chosen.entry}
    _, faults = inspect(tree, Registry(entries=known))
    return any(fault.where.startswith(f"{subject.kind}.{name}=") for fault in faults)


NONSENSE: dict[type, tuple[Any, ...]] = {
    int: (-1, 0),
    float: (-1.0, 0.0),
    str: ("no such word",),
    bool: (),
}


@proves(
    "an option's value is refused, or gives finite numbers: -1, 0, an unknown word",
    (*STREAM, "init"),
    (CASE,),
    given=_none,
)
def nonsense(subject: Subject, case: Case) -> float:
    """Try values that are no good for most options, on random rows and on zeros."""
    for spec, value in _fields(subject):
        sort = type(value) if value is not None else int if "int" in str(spec.type) else float
        for bad in NONSENSE.get(sort, ()):
            if _refused(subject, spec.name, bad):
                continue
            other = subject.with_options(**{spec.name: bad})
            what = f"{subject.kind}.{spec.name}={show(bad)} is accepted:"
            try:
                found = observed(other, case)
            except EncoderkitError:
                continue
            except Exception as error:
                require(False, f"{what} {type(error).__name__}: {error}")
            for t in found:
                finite(t, f"{what} the result")
    return 0.0


def _fields(subject: Subject) -> Iterator[tuple[Any, Any]]:
    """Yield every option with its value."""
    for spec in dataclasses.fields(subject.part.options):
        yield spec, getattr(subject.options, spec.name)


def _others(value: Any, spec: Any) -> list[Any]:
    """Return other values that an option takes."""
    allowed: Range = spec.metadata["range"]
    if allowed.choices is not None:
        return [word for word in allowed.choices if word != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int) or (value is None and "int" in str(spec.type)):
        tried: list[Any] = [3, 5, 2] if value is None else [value + 1, 2 * value, value - 1]
    elif isinstance(value, float) or (value is None and "float" in str(spec.type)):
        tried = [0.5, 2.0] if value is None else [value * 2 + 1e-3, value / 2 + 1e-3, value + 1]
    else:
        return []
    return [v for v in tried if not allowed.refusal(v)][:1]


@proves("every option has an effect", KINDS, (CASE,), given=_none)
def options_matter(subject: Subject, case: Case) -> float:
    """Compare results, states and shapes under another value of each option."""
    before = observed(subject, case)
    for spec, value in _fields(subject):
        need = spec.metadata.get("needs")
        if need is not None and need not in subject.traits.serves:
            continue  # refused before training
        for other in _others(value, spec):
            try:
                after = observed(subject.with_options(**{spec.name: other}), case)
            except EncoderkitError:
                continue  # refused together with the others: so it is read
            same = len(before) == len(after) and all(map(_equal, before, after))
            words = f"{subject.kind}.{spec.name}={show(other)} changes nothing"
            require(not same, f"{words} ({show(value)} is usual)")
    return 0.0


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())


def observed(subject: Subject, case: Case) -> list[Tensor]:
    """Return all that one can see of a part: results and losses in both modes, and its state."""
    if subject.kind == "task":
        return contents(subject)
    if subject.kind == "init":
        return [t for seed in (0, 1) for t in drawn(subject, seed).values()]
    bench = subject.bench(case)
    found: list[Tensor] = []
    for train in (False, True, False):
        for scale in (1.0, 1e-3, 0.0):
            x, out = subject.tokens(replace(case, train=train), scale=scale), Out()
            found.append(subject.run(bench.train(train), x, case.lengths, out=out).detach())
            found += [loss.detach() for loss in out.losses.values()]
    return found + [t.detach().clone() for t in bench.state_dict().values()]
