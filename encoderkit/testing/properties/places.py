"""What only placements, positions or attention must do."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from encoderkit.nn import Branch, Ctx, Placement
from encoderkit.testing.bench import AttentionBench, Bench, Turning
from encoderkit.testing.case import (
    Case,
    distance,
    in_both_modes,
    ladder,
    near,
    pieces,
    require,
)
from encoderkit.testing.examine import proves
from encoderkit.testing.subject import Subject


@proves(
    "a placement calls its branch once, on tokens of the same shape and with the same ctx",
    ("placement",),
    in_both_modes(ladder(((1,), (3, 0, 2)))),
)
def branch_once(subject: Subject, case: Case) -> float:
    """Count the calls."""
    bench, x, ctx = subject.bench(case), subject.tokens(case), subject.context(case.lengths)
    calls: list[tuple[torch.Size, torch.dtype, bool]] = []

    def branch(given: Tensor, its: Ctx) -> Tensor:
        calls.append((given.shape, given.dtype, its is ctx))
        return given * 0.5

    _placed(bench, x, branch, ctx)
    require(len(calls) == 1, f"it is called {len(calls)} times")
    require(calls[0][:2] == (x.shape, x.dtype), f"it gets {calls[0][0]} of {calls[0][1]}")
    require(calls[0][2], "it gets another ctx")
    return 0.0


@proves(
    "the branch has an effect on the stream", ("placement",), in_both_modes(ladder(((2,), (3, 2))))
)
def branch_matters(subject: Subject, case: Case) -> float:
    """Compare two branches."""
    bench, x, ctx = subject.bench(case), subject.tokens(case), subject.context(case.lengths)
    one, two = (_placed(bench, x, b, ctx) for b in (lambda x, _: x.sin(), lambda x, _: x.cos()))
    require(distance(one, two) > 1e-6, "two branches give one result")
    return 0.0


def _placed(bench: Bench, x: Tensor, branch: Branch, ctx: Ctx) -> Tensor:
    """Return what a placement makes of x with some branch, its streams made one again."""
    part = cast(Placement, bench.part)
    return part.leave(part(part.enter(x, ctx), branch, ctx), lambda y, _: y, ctx)


@proves(
    "only the distance of two tokens counts, not where positions start",
    ("position",),
    ladder(((2,), (3, 0, 2), (7, 1, 5))),
    unless="absolute",
)
def shift(subject: Subject, case: Case) -> float:
    """Compare positions from 0 with positions from 9."""
    bench, x = subject.bench(case), subject.tokens(case)
    y, z = (subject.run(bench, x, case.lengths, shift=by) for by in (0, 9))
    return near(z, y, max(1e-10, subject.traits.approximate), "positions from 0 and from 9")


@proves(
    "the positions in ctx are what is read, not the place in the batch",
    ("position",),
    ladder(((3,), (3, 0, 2))),
)
def given_positions(subject: Subject, case: Case) -> float:
    """Turn every sequence round, with its positions: the results must turn with it."""
    bench, x = subject.bench(case), subject.tokens(case)
    plain, turned = (subject.context(case.lengths) for _ in range(2))
    turns = [p.flip(0) for p in pieces(torch.arange(len(x)), case.lengths)]
    back = torch.cat(turns)
    turned.positions = turned.positions[back]
    limit = max(1e-10, subject.traits.approximate)
    return near(bench(x[back], turned), bench(x, plain)[back], limit, "turned round and plain")


@proves(
    "turned queries and keys have an effect just if the part says that it serves rotation",
    ("attention",),
    ladder(((3,), (3, 0, 2))),
)
def reads_position(subject: Subject, case: Case) -> float:
    """Compare with and without positions."""
    bench, x = subject.bench(case), subject.tokens(case)
    plain = subject.run(bench, x, case.lengths)
    if isinstance(bench, AttentionBench):
        bench.tables = Turning
    serves = "rotation" in subject.traits.serves
    turned = distance(subject.run(bench, x, case.lengths), plain) > 1e-9
    require(turned or not serves, "turned or not, the result is the same")
    require(serves or not turned, "they have, and serves does not name rotation")
    return 0.0
