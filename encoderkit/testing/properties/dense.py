"""The dense layout, with padding inside: what stands there must reach nothing."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from encoderkit.nn import Out
from encoderkit.testing.case import Broken, Case, backward, finite, ladder, near, require
from encoderkit.testing.examine import proves
from encoderkit.testing.subject import STREAM, Subject

PADDED = ladder(((1, 2), (3, 0, 2), (7, 1, 5)))
TIGHT = 1e-12


def _packed_only(subject: Subject) -> str:
    """Return why the dense layout is no question; `layouts` examines the trait."""
    return "" if "dense" in subject.traits.layouts else "it declares the packed layout only"


def grid(case: Case, x: Tensor, *, more: int = 0, left: bool = False) -> tuple[Tensor, Tensor]:
    """Return packed tokens on a padded grid, with zeros around them.

    Shapes: x (N, D) -> (B, S, D), (B, S)
    """
    s = max(case.lengths) + more
    valid = torch.zeros(len(case.lengths), s, dtype=torch.bool)
    for row, length in enumerate(case.lengths):
        valid[row, s - length if left else 0 : s if left else length] = True
    padded = x.new_zeros(*valid.shape, x.shape[1])
    padded[valid] = x
    return padded, valid


@proves(
    "the dense layout computes the same as the packed, and hands out the same losses",
    STREAM,
    PADDED,
    unless="layouts",
)
def layouts(subject: Subject, case: Case) -> float:
    """Compare the layouts; a part that declares one only may fail in any way in the other."""
    x, ours, theirs = subject.tokens(case), Out(), Out()
    y = subject.run(subject.bench(case), x, case.lengths, out=ours)
    padded, valid = grid(case, x)
    try:
        z = subject.run_dense(subject.bench(case), padded, valid, out=theirs)[valid]
    except Exception as error:
        raise Broken(f"dense fails: {type(error).__name__}: {error}") from error
    off = near(z, y, TIGHT, "dense and packed")
    require(
        ours.losses.keys() == theirs.losses.keys(), "one hands out losses that the other has not"
    )
    for name, loss in ours.losses.items():
        off = max(
            off, near(theirs.losses[name], loss, TIGHT, f"the loss {name!r}, dense and packed")
        )
    return off


@proves(
    "what stands in padded slots reaches no real token, with weights x200 too",
    STREAM,
    tuple(
        replace(case, dtype=dtype, variant=variant)
        for case in PADDED
        for dtype, variant in [
            (torch.float64, "padding 1e4"),
            (torch.float64, "padding random, weights x200"),
            (torch.float16, "padding random, weights x200"),
        ]
    ),
    given=_packed_only,
)
def padding_content(subject: Subject, case: Case) -> float:
    """Compare with zeros in the padded slots, bit for bit."""
    bench, x = subject.bench(case), subject.tokens(case)
    if "x200" in case.variant:
        with torch.no_grad():
            for p in bench.parameters():
                p.mul_(200)
    padded, valid = grid(case, x)
    draws = torch.Generator().manual_seed(5)
    noise = torch.randn(padded.shape, generator=draws).to(x.dtype) * 3
    other = noise if "random" in case.variant else torch.full_like(padded, 1e4)
    other[valid] = x
    y, z = (subject.run_dense(bench, given, valid)[valid] for given in (padded, other))
    return near(z, y, 0, "zeros and something else in padded slots")


@proves(
    "more padding, on either side, is irrelevant",
    STREAM,
    PADDED,
    given=_packed_only,
)
def padding_length(subject: Subject, case: Case) -> float:
    """Compare with one and with 33 more columns, on the right and on the left."""
    bench, x, off = subject.bench(case), subject.tokens(case), 0.0
    padded, valid = grid(case, x)
    y = subject.run_dense(bench, padded, valid)[valid]
    for more, left in ((1, False), (33, False), (0, True), (33, True)):
        padded, valid = grid(case, x, more=more, left=left)
        side = "left" if left else "right"
        z = subject.run_dense(bench, padded, valid)[valid]
        off = max(off, near(z, y, TIGHT, f"{more} more columns, padded on the {side}"))
    return off


@proves(
    "a row of padding alone gives finite numbers, forward and backward",
    STREAM,
    ladder(((0,), (0, 1), (3, 0, 2))),
    given=_packed_only,
)
def padded_row(subject: Subject, case: Case) -> float:
    """Go forward and backward over an empty row."""
    bench, x = subject.bench(case), subject.tokens(case)
    padded, valid = grid(case, x, more=1)
    padded.requires_grad_()
    y = subject.run_dense(bench, padded, valid)
    finite(y, "the result")
    backward(y[valid].sum())
    for name, t in [("x", padded), *bench.named_parameters()]:
        if t.grad is not None:
            finite(t.grad, f"the gradient of {name.removeprefix('part.')}")
    return 0.0
