"""Whether the numbers are right: against a reference, against differences, in other dtypes."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from encoderkit.api import Kind
from encoderkit.testing.bench import AttentionBench, Bench
from encoderkit.testing.case import Case, backward, finite, in_both_modes, ladder, near, require
from encoderkit.testing.examine import proves
from encoderkit.testing.references import softmax_attention
from encoderkit.testing.subject import STREAM, Reference, Subject

EXACT = 1e-10
COMPARED = (
    *in_both_modes(ladder(((1,), (2,), (3, 0, 2), (4, 4)))),
    *in_both_modes((Case(lengths=(7, 1, 0, 5), width=12, heads=3),)),
    *(Case(variant=f"x {scale:g}") for scale in (0.0, 1e-3, 30.0)),
)


def _reference(subject: Subject) -> Reference | None:
    if subject.reference is None and subject.kind == "attention":
        return None if subject.traits.own_maths else softmax_attention
    return subject.reference


def _unknown(subject: Subject) -> str:
    return "" if _reference(subject) else "no reference was given"


def _compare(subject: Subject, case: Case, limit: float) -> float:
    """Compare values and gradients with the reference."""
    reference = _reference(subject)
    assert reference is not None  # what `given` asks for
    x = subject.tokens(case, scale=float((case.variant or "x 1").split()[1])).requires_grad_()
    found = []
    for ours in (True, False):
        bench = subject.bench(case)
        made = subject.run(bench, x, case.lengths) if ours else _told(reference, bench, case, x)
        leaves = {"x": x} | {n: p for n, p in bench.named_parameters() if p.requires_grad}
        loss = (made * torch.linspace(-1, 1, made.numel(), dtype=x.dtype).view_as(made)).sum()
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        named = zip(leaves, grads, strict=True)
        tensors = {f"the gradient of {n.removeprefix('part.')}": g for n, g in named}
        found.append({"the result": made} | tensors)
    off = 0.0
    for name, t in found[1].items():
        if t is not None:
            own = found[0][name]
            require(own is not None, f"{name} is missing")
            size = 1 + float(t.detach().abs().max()) if t.numel() else 1.0
            off = max(off, near(own / size, t / size, limit, f"{name}, and the reference's"))
    return off


def _told(reference: Reference, bench: Bench, case: Case, x: Tensor) -> Tensor:
    """Return what the reference makes of x; one for placements or positions gets the bench."""
    alone = isinstance(bench, AttentionBench) or type(bench) is Bench
    return reference(bench.part if alone else bench, x, case.lengths)


@proves(
    "equals its reference to 1e-10, values and gradients",
    STREAM,
    COMPARED,
    unless="approximate",
    given=_unknown,
)
def exact(subject: Subject, case: Case) -> float:
    """Compare with the reference."""
    return _compare(subject, case, EXACT)


@proves(
    "is as near to its reference as it declares",
    STREAM,
    COMPARED,
    given=lambda subject: (
        _unknown(subject)
        or ("" if subject.traits.approximate else "it does not declare to be approximate")
    ),
)
def stated_error(subject: Subject, case: Case) -> float:
    """Compare with the reference, to the error that the trait states."""
    return _compare(subject, case, subject.traits.approximate)


@proves(
    "attention is softmax(q k^T / sqrt(K)) v of its own projections",
    ("attention",),
    ladder(((2,), (3, 0, 2))),
    unless="own_maths",
)
def softmax(subject: Subject, case: Case) -> float:
    """Compare with plain loops, whatever reference was given."""
    x, bench = subject.tokens(case), subject.bench(case)
    limit = max(EXACT, subject.traits.approximate)
    try:
        theirs = softmax_attention(bench.part, x, case.lengths)
    except (AttributeError, RuntimeError) as error:
        require(False, f"there are no such projections: {error}")
        raise
    return near(subject.run(bench, x, case.lengths), theirs, limit, "the part and plain loops")


@proves(
    "gradients are what differences say, for x and every parameter",
    STREAM,
    in_both_modes(ladder(((1,), (2,), (3, 0, 2)))),
    unless="differentiable",
)
def gradients(subject: Subject, case: Case) -> float:
    """Compare derivatives along random directions with central differences."""
    bench, x = subject.bench(case), subject.tokens(case).requires_grad_()
    live, draws = copy.deepcopy(bench), torch.Generator().manual_seed(3)
    y = subject.run(live, x, case.lengths)
    weight = torch.randn(y.shape, generator=draws, dtype=y.dtype)
    names = [n for n, p in live.part.named_parameters() if p.requires_grad]
    leaves = [x, *(live.part.get_parameter(n) for n in names)]
    found: tuple[Tensor | None, ...] = (None,) * len(leaves)
    if y.requires_grad:
        found = torch.autograd.grad((y * weight).sum(), leaves, allow_unused=True)
    # A twin of `bench` is called each time: a call in training may change its state.
    moved = [x.detach().clone(), *(bench.part.get_parameter(n) for n in names)]

    def loss() -> float:
        made = subject.run(copy.deepcopy(bench), moved[0], case.lengths)
        return float((made.detach() * weight).sum())

    off = 0.0
    for name, leaf, grad in zip(["x", *names], moved, found, strict=True):
        way = torch.randn(leaf.shape, generator=draws, dtype=leaf.dtype)
        said = 0.0 if grad is None else float((grad * way).sum())
        ends = []
        with torch.no_grad():
            for sign in (1e-6, -2e-6):
                leaf += sign * way
                ends.append(loss())
            leaf += 1e-6 * way
        seen = (ends[0] - ends[1]) / 2e-6
        wrong = abs(said - seen) / (1 + abs(seen))
        words = f"along one direction the gradient of {name} says {said:.6g}"
        require(wrong < 1e-6, f"{words}, differences {seen:.6g}")
        off = max(off, wrong)
    return off


LOW = (torch.bfloat16, torch.float16)


@proves(
    "a part cast to bfloat16 or float16 stays near float64; tables keep their accuracy",
    STREAM,
    tuple(
        replace(case, dtype=dtype)
        for case in (Case(lengths=(3, 0, 2)), Case(lengths=(6,), variant="positions to 4096"))
        for dtype in LOW
    ),
)
def low_precision(subject: Subject, case: Case) -> float:
    """Compare with float64, on weights and tokens that the low dtype can hold."""
    held = subject.bench(replace(case, dtype=torch.float64))
    with torch.no_grad():
        for p in held.parameters():
            p.copy_(p.to(case.dtype))
    x = subject.tokens(case)
    far = subject.max_positions(4096) - max(case.lengths) if case.variant else 0
    low = copy.deepcopy(held).to(case.dtype)
    y = subject.run(low, x, case.lengths, shift=far)
    exact = subject.run(held, x.double(), case.lengths, shift=far)
    require(y.dtype == case.dtype, f"{y.dtype} comes out, {case.dtype} went in")
    size = 1 + float(exact.detach().abs().max())
    limit = 0.04 if case.dtype == torch.bfloat16 else 0.01
    return near(y.double() / size, exact / size, limit, "low precision and float64")


@proves(
    "under bfloat16 autocast: finite, near, one dtype with and without gradients",
    STREAM,
    in_both_modes(ladder(((2,), (3, 0, 2)), Case(dtype=torch.float32))),
)
def autocast(subject: Subject, case: Case) -> float:
    """Compare with float32, with gradients and without."""
    x = subject.tokens(case).requires_grad_()
    plain = subject.run(subject.bench(case), x, case.lengths)
    bench = subject.bench(case)
    with torch.autocast("cpu", torch.bfloat16):
        y = subject.run(bench, x, case.lengths)
        with torch.no_grad():
            z = subject.run(subject.bench(case), x, case.lengths)
    require(y.dtype == z.dtype, f"{y.dtype} with gradients, {z.dtype} without")
    backward(y.float().square().sum())
    for name, p in [("x", x), *bench.named_parameters()]:
        if p.grad is not None:
            finite(p.grad, f"the gradient of {name}")
    size = 1 + float(plain.detach().abs().max())
    return near(y.double() / size, plain.double() / size, 0.04, "autocast and float32")


SCALES = ("zero rows", "constant rows", "x 1e-30", "x 3e4")
NORMLIKE: tuple[Kind, ...] = ("norm",)


def _rows(subject: Subject, case: Case, scale: str) -> Tensor:
    x = subject.tokens(replace(case, dtype=torch.float64))
    if scale == "zero rows":
        x = torch.zeros_like(x)
    elif scale == "constant rows":
        x = torch.full_like(x, 300.0)
    else:
        x = x / x.abs().max() * float(scale.split()[1])
    return x.to(case.dtype)


def _extremes(subject: Subject, case: Case) -> tuple[Tensor, Tensor, Bench]:
    """Go forward and backward on extreme numbers; return x, the result and the part."""
    bench = subject.bench(case)
    x = _rows(subject, case, case.variant).requires_grad_()
    y = subject.run(bench, x, case.lengths)
    finite(y, "the result")
    backward((y / (1 + y.detach().abs().max())).sum())
    for name, p in [("x", x), *bench.named_parameters()]:
        if p.grad is not None:
            finite(p.grad, f"the gradient of {name.removeprefix('part.')}")
    return x, y, bench


@proves(
    "zeros, constants and numbers from 1e-30 to 3e4 give finite numbers, forward and backward",
    STREAM,
    tuple(
        replace(case, dtype=torch.float32, variant=scale)
        for case in in_both_modes(ladder(((2,), (3, 0, 2))))
        for scale in SCALES
    ),
)
def magnitude(subject: Subject, case: Case) -> float:
    """Try float32."""
    _extremes(subject, case)
    return 0.0


@proves(
    "a norm is right in float16 up to 3e4: nothing overflows on the way",
    NORMLIKE,
    tuple(Case(lengths=(2,), dtype=torch.float16, variant=scale) for scale in SCALES),
)
def half_overflow(subject: Subject, case: Case) -> float:
    """Compare float16 with float64."""
    x, y, bench = _extremes(subject, case)
    exact = subject.run(copy.deepcopy(bench).double(), x.detach().double(), case.lengths)
    size = 1 + float(exact.detach().abs().max())
    # torch's layer_norm is off by .02 on a constant row of 300, in float32 too.
    return near(y.double() / size, exact / size, 0.05, "float16 and float64")
