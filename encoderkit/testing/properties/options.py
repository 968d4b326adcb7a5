"""Options: nonsense is refused before anything is built, and none is without effect."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_type_hints

import torch
import yaml
from torch import Tensor

from encoderkit.api import KINDS, Condition, Range, conditions, fit
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


def others(value: Any, spec: Any) -> list[Any]:
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
    """Compare results, states and shapes under another value of each option.

    An option with a `when` is tried with the part's other options such that it holds, and such that
    it does not: there it must change nothing. What a `when` says of other parts is not tried.
    """
    for spec, value in _fields(subject):
        need = spec.metadata.get("needs")
        if need is not None and need not in subject.traits.serves:
            continue  # refused before training
        live, idle = under(subject, spec)
        for other in others(value, spec):
            found = f"{subject.kind}.{spec.name}={show(other)}"
            if live is not None:
                words = f"{found} changes nothing ({show(value)} is usual)"
                require(_matters(live, spec.name, other, case) is not False, words)
            if idle is not None:
                words = f"{found} has an effect where its `when` says that it has none"
                require(not _matters(idle, spec.name, other, case), words)
    return 0.0


def under(subject: Subject, spec: Any) -> tuple[Subject | None, Subject | None]:
    """Return the subject where an option's `when` holds, and where it does not, as far as it can.

    None is where another part decides.
    """
    words = conditions(spec.metadata["when"]) if spec.metadata["when"] else []
    own = [each for each in words if each.path.startswith(f"{subject.kind}.")]
    own = [each for each in own if not each.path.endswith(".part")]
    live: Subject | None = subject
    for each in own:
        live = _with(live, each, True)
    idle = _with(live, own[0], False) if own else None
    return live if len(own) == len(words) else None, idle


def _with(subject: Subject | None, word: Condition, wanted: bool) -> Subject | None:
    """Return the subject with another value of an option, so that a condition holds or does not."""
    if subject is None:
        return None
    name = word.path.partition(".")[2]
    specs = {spec.name: spec for spec, _ in _fields(subject)}
    require(name in specs, f"a `when` names {word.path}, and there is no such option")
    value, hint = getattr(subject.options, name), get_type_hints(subject.part.options)[name]
    if word.holds(value) is wanted:
        return subject
    tried = []
    for text in (word.value, *others(value, specs[name])):
        with contextlib.suppress(TypeError, yaml.YAMLError):
            tried.append(fit(yaml.safe_load(str(text)), hint))
    held = [v for v in tried if word.holds(v) is wanted]
    return subject.with_options(**{name: held[0]}) if held else None


def _matters(subject: Subject, name: str, value: Any, case: Case) -> bool | None:
    """Tell whether another value of an option makes a difference; None where it is refused."""
    try:
        before = observed(subject, case)
        after = observed(subject.with_options(**{name: value}), case)
    except EncoderkitError:
        return None  # together with the others: so it is read
    return len(before) != len(after) or not all(map(_equal, before, after))


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
