"""What a call may do to what it is given, and what it gives back."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import replace

import torch
from torch import Tensor

from encoderkit.errors import ConfigError, InputError
from encoderkit.nn import Ctx, Out
from encoderkit.testing.case import (
    Broken,
    Case,
    backward,
    finite,
    in_both_modes,
    ladder,
    near,
    require,
)
from encoderkit.testing.examine import proves
from encoderkit.testing.subject import STREAM, Subject

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@proves(
    "a result has the shape and dtype of x, in four dtypes",
    STREAM,
    tuple(replace(case, dtype=dtype) for case in ladder(((1,), (3, 0, 2))) for dtype in DTYPES),
)
def shape_and_dtype(subject: Subject, case: Case) -> float:
    """Compare what goes in and comes out."""
    x = subject.tokens(case)
    y = subject.run(subject.bench(case), x, case.lengths)
    require(y.shape == x.shape, f"{tuple(y.shape)} comes out, {tuple(x.shape)} went in")
    require(y.dtype == x.dtype, f"{y.dtype} comes out, {x.dtype} went in")
    finite(y, "the result")
    return 0.0


SIZES = ((4, 2, 8), (6, 2, 8), (5, 1, 7), (12, 3, 16), (16, 4, 8))


@proves(
    "works at every size, or is refused with a ConfigError when it is built",
    STREAM,
    tuple(Case(width=w, heads=h, d_ff=f) for w, h, f in SIZES),
)
def sizes(subject: Subject, case: Case) -> float:
    """Build at a size and call."""
    try:
        bench = subject.bench(case)
    except ConfigError:
        return 0.0
    y = subject.run(bench, subject.tokens(case), case.lengths)
    return near(y.new_zeros(y.shape), y.new_zeros(5, case.width), 0, "the shape")


@proves(
    "x may be a view of anything: other strides and expanded rows give the same",
    STREAM,
    in_both_modes(ladder(((2,), (3, 2)))),
)
def strides(subject: Subject, case: Case) -> float:
    """Compare with a contiguous x."""
    bench, x = subject.bench(case), subject.tokens(case)
    twin = copy.deepcopy(bench)
    y = subject.run(bench, x, case.lengths)
    other = subject.run(twin, x.t().contiguous().t(), case.lengths)
    off = near(other, y, 1e-12, "x with other strides")
    bench, twin = subject.bench(case), subject.bench(case)
    row = x[:1].expand(len(x), -1)
    y = subject.run(bench, row.clone(), case.lengths)
    return max(off, near(subject.run(twin, row, case.lengths), y, 1e-12, "x expanded"))


@proves("neither x nor the context is changed", STREAM, in_both_modes(ladder(((1,), (3, 0, 2)))))
def input_intact(subject: Subject, case: Case) -> float:
    """Compare x and the context with copies."""
    bench, x = subject.bench(case), subject.tokens(case)
    before, ctx = x.clone(), subject.context(case.lengths)
    held = _fields(ctx)
    with torch.no_grad():
        bench(x, ctx)
    near(x, before, 0, "x after the call")
    now = _fields(ctx)
    changed = [name for name in held if not _same(held[name], now[name])]
    require(not changed, f"the call changed ctx.{', ctx.'.join(changed)}")
    return 0.0


def _fields(ctx: Ctx) -> dict[str, object]:
    names = ("layout", "shape", "lengths", "offsets", "max_len", "positions", "n_positions")
    return {n: copy.deepcopy(getattr(ctx, n)) for n in (*names, "runs", "seed", "step", "valid")}


def _same(a: object, b: object) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b


@proves(
    "keeps neither x nor the context after a call", STREAM, in_both_modes(ladder(((1,), (3, 0, 2))))
)
def lets_go(subject: Subject, case: Case) -> float:
    """Call, drop everything, and look whether it is gone."""
    bench = subject.bench(case)
    x, ctx = subject.tokens(case), subject.context(case.lengths)
    held = {"x": weakref.ref(x), "ctx.positions": weakref.ref(ctx.positions)}
    held["ctx.offsets"] = weakref.ref(ctx.offsets)
    with torch.no_grad():
        bench(x, ctx)
    del x, ctx
    if any(ref() is not None for ref in held.values()):
        gc.collect()
    kept = [name for name, ref in held.items() if ref() is not None]
    require(not kept, f"{', '.join(kept)} stays alive after the call")
    return 0.0


@proves(
    "a listener changes nothing, and what is handed out is finite",
    STREAM,
    in_both_modes(ladder(((1,), (3, 0, 2)))),
)
def listener(subject: Subject, case: Case) -> float:
    """Call with a collector and without."""
    x, out = subject.tokens(case), Out()
    quiet = subject.run(subject.bench(case), x, case.lengths)
    heard = subject.run(subject.bench(case), x, case.lengths, out=out)
    for name, loss in out.losses.items():
        require(loss.dim() == 0, f"the loss {name!r} is {tuple(loss.shape)}, and no scalar")
        finite(loss, f"the loss {name!r}")
    for name, record in out.records.items():
        for item in record:
            finite(item, f"the record {name!r}")
    return near(heard, quiet, 0, "with a listener")


@proves(
    "refuses nothing of a batch without tokens, and changes no state for it",
    STREAM,
    in_both_modes(ladder(((), (0,), (0, 0)))),
)
def no_tokens(subject: Subject, case: Case) -> float:
    """Call and go backward on nothing."""
    bench = subject.bench(case)
    before = {name: t.clone() for name, t in bench.state_dict().items()}
    x = subject.tokens(case).requires_grad_()
    y = subject.run(bench, x, case.lengths)
    require(y.shape == x.shape, f"{tuple(y.shape)} comes out, {tuple(x.shape)} went in")
    backward(y.sum())
    for name, p in bench.named_parameters():
        if p.grad is not None:
            finite(p.grad, f"the gradient of {name}")
    for name, t in bench.state_dict().items():
        near(t, before[name], 0, f"{name} after the call")
    return 0.0


@proves(
    "one token is enough in training",
    STREAM,
    ladder(((1,), (0, 1)), Case(variant="then train")),
    unless="min_tokens_in_train",
)
def one_token(subject: Subject, case: Case) -> float:
    """Train on one token; an InputError is the one good way to refuse it."""
    try:
        bench = subject.bench(case).train()
        y = subject.run(bench, subject.tokens(case), case.lengths)
    except InputError as error:
        raise Broken(f"refused: {error}") from error
    finite(y, "the result")
    return 0.0
