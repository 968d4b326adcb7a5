"""What an attention says that it serves, and where it says that it runs: all of it, and no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, get_args

import torch
from torch import Tensor

from encoderkit.api import Capability, Device, Precision
from encoderkit.errors import InputError
from encoderkit.nn import Ctx, Out
from encoderkit.testing.bench import Alone, AttentionBench
from encoderkit.testing.case import Case, distance, ladder, near, pieces, require, varied
from encoderkit.testing.examine import proves
from encoderkit.testing.references import softmax_attention
from encoderkit.testing.subject import STREAM, Subject

SMALL = ladder(((2,), (3, 0, 2)))
TIGHT = 1e-10


def _unserved(capability: Capability) -> Callable[[Subject], str]:
    """Return a question: why a part is not asked for a capability, or nothing."""

    def given(subject: Subject) -> str:
        served = capability in subject.traits.serves
        return "" if served else f"serves does not name {capability}, so that it is refused"

    return given


def _with(subject: Subject, **values: Any) -> Subject:
    """Return the part with other values of some options, which must be there.

    Errors: Broken.
    """
    own = {spec.name for spec in fields(subject.options)}
    lacking = sorted(values.keys() - own)
    require(not lacking, f"serves names it, and there is no option {', '.join(lacking)}")
    return subject.with_options(**values)


@proves(
    "what positions add to the scores has an effect just if serves names bias; -1e9 hides a token",
    ("attention",),
    SMALL,
)
def serves_bias(subject: Subject, case: Case) -> float:
    """Hide all other tokens, and compare with sequences of one token each."""
    bench, x = subject.bench(case), subject.tokens(case)
    plain = subject.run(bench, x, case.lengths)
    alone = subject.run(bench, x, [1] * len(x))
    if isinstance(bench, AttentionBench):
        bench.tables = lambda ctx, dtype: Alone(ctx, dtype, case.heads)
    hidden = subject.run(bench, x, case.lengths)
    if "bias" in subject.traits.serves:
        return near(hidden, alone, TIGHT, "all others hidden, and each token alone")
    require(distance(hidden, plain) < 1e-9, "it has, and serves does not name bias")
    return 0.0


@proves(
    "a window of 1 lets a token see its neighbours on both sides, by position, and no other",
    ("attention",),
    varied(ladder(((4,), (5, 0, 4))), "next to each other", "two apart"),
    given=_unserved("window"),
)
def serves_window(subject: Subject, case: Case) -> float:
    """Change one token, and see whom that reaches; positions may refuse with an InputError."""
    bench, x = _with(subject, window=1).bench(case), subject.tokens(case)
    step = 2 if case.variant == "two apart" else 1

    def run(x: Tensor) -> Tensor:
        ctx: Ctx = subject.context(case.lengths)
        if step > 1:
            ctx.positions, ctx.n_positions = ctx.positions * step, ctx.n_positions * step
            ctx.counted = False
        y: Tensor = bench(x, ctx)
        return y

    try:
        before = run(x)
    except InputError:
        return 0.0
    off = 0.0
    for changed in (0, 3):
        other = x.clone()
        other[changed] += 1
        after = run(other)
        for n in range(4):
            if abs(n - changed) * step > 1:
                what = f"token {n} after a change of token {changed}"
                off = max(off, near(after[n], before[n], 1e-12, what))
            else:
                words = f"token {n} does not see token {changed}"
                require(distance(after[n], before[n]) > 1e-6, words)
    return off


@proves(
    "softcap is c tanh(score / c): a tiny c makes all weights of a query alike",
    ("attention",),
    varied(ladder(((2,), (3, 0, 2))), "c 1e-6", "c 0.5"),
    given=_unserved("softcap"),
)
def serves_softcap(subject: Subject, case: Case) -> float:
    """Look for one result per sequence, or compare with plain loops."""
    cap = float(case.variant.split()[1])
    capped = _with(subject, softcap=cap)
    bench, x = capped.bench(case), subject.tokens(case)
    y = subject.run(bench, x, case.lengths)
    if cap < 0.1:
        parts = [part for part in pieces(y, case.lengths) if len(part)]
        flat = torch.cat([part[:1].expand_as(part) for part in parts])
        return near(y, flat, 1e-4, "the tokens of one sequence")
    if subject.traits.own_maths:
        return 0.0
    theirs = softmax_attention(bench.part, x, case.lengths, softcap=cap)
    return near(y, theirs, TIGHT, f"softcap={cap} and plain loops")


@proves(
    "weights are recorded under the slot's name just if serves names them, and make the result",
    ("attention",),
    SMALL,
)
def serves_weights(subject: Subject, case: Case) -> float:
    """Compute the result from the weights again."""
    bench, x, out = subject.bench(case), subject.tokens(case), Out()
    y = subject.run(bench, x, case.lengths, out=out)
    part: Any = bench.part
    found = out.records.get("layers.0.attention")
    if "weights" not in subject.traits.serves:
        require(found is None, "they are, and serves does not name weights")
        return 0.0
    wanted = [(case.heads, n, n) for n in case.lengths]
    shapes = [tuple(w.shape) for w in found or []]
    require(shapes == wanted, f"records of the shapes {shapes}, and not {wanted}")
    v = part.v(x).unflatten(1, (case.heads, -1)).transpose(0, 1)  # (H, N, K)
    rows = []
    for weights, own in zip(found or [], torch.split(v, list(case.lengths), 1), strict=True):
        if weights.numel():
            require(float(weights.detach().min()) >= 0, "a weight is below 0")
            near(
                weights.sum(2), torch.ones_like(weights[..., 0]), TIGHT, "the sum of weights, and 1"
            )
        rows.append((weights @ own).transpose(0, 1).flatten(1))  # (T, D)
    return near(part.out(torch.cat(rows)), y, TIGHT, "the result, and what the weights make")


@proves(
    "dropout changes training",
    ("attention",),
    ladder(((8, 0, 5),), Case(train=True, width=8)),
    given=_unserved("dropout"),
)
def serves_dropout(subject: Subject, case: Case) -> float:
    """Compare dropout=0.5 with dropout=0; that it is off in eval is asked elsewhere."""
    x = subject.tokens(case)
    y, z = (
        subject.run(_with(subject, dropout=rate).bench(case), x, case.lengths)
        for rate in (0.0, 0.5)
    )
    require(distance(y, z) > 1e-6, "dropout=0.5 changes nothing")
    return 0.0


def _everywhere(subject: Subject) -> str:
    """Return why there is no place that a part does not name, or nothing."""
    traits = subject.traits
    everything = {*get_args(Device), *get_args(Precision)} == traits.devices | traits.precisions
    return "it names them all" if everything else ""


@proves(
    "what devices and precisions do not name is out of reach",
    STREAM,
    (Case(width=16, d_ff=16),),
    given=_everywhere,
    anywhere=True,
)
def elsewhere(subject: Subject, case: Case) -> float:
    """Try the CPU, and every dtype that is not named: each must fail."""
    for name in get_args(Precision):
        named = "cpu" in subject.traits.devices and name in subject.traits.precisions
        if named:
            continue
        there = replace(case, dtype=getattr(torch, name))
        try:
            subject.run(subject.bench(there), subject.tokens(there), case.lengths)
        except Exception:
            continue
        require(False, f"it runs on a CPU in {name}, and does not say so")
    return 0.0
