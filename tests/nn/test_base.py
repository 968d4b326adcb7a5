from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from encoderkit.nn.base import (
    FFN,
    Dropout,
    Init,
    NoNorm,
    Norm,
    Placement,
    Position,
)
from encoderkit.nn.context import Ctx, packed

CPU = torch.device("cpu")


def context(lengths: list[int], step: int | None = None) -> Ctx:
    ctx = packed(lengths, (len(lengths), max(lengths, default=0)), CPU)
    ctx.seed, ctx.step = 3, step
    return ctx


def test_dropout_is_a_function_of_seed_step_and_path() -> None:
    x, before = torch.ones(50, 8), torch.get_rng_state()
    first = Dropout(0.5, "a")(x, context([50], step=4))
    assert torch.equal(Dropout(0.5, "a")(x, context([50], step=4)), first)
    assert torch.equal(torch.get_rng_state(), before)
    others = [Dropout(0.5, "b")(x, context([50], 4)), Dropout(0.5, "a")(x, context([50], 5))]
    again = context([50], 4)
    again.seed = 9
    others.append(Dropout(0.5, "a")(x, again))
    assert not any(torch.equal(first, other) for other in others)
    assert set(first.unique().tolist()) == {0.0, 2.0}
    assert 0.35 < float((first > 0).float().mean()) < 0.65


def test_dropout_without_a_step_draws_from_torch() -> None:
    x = torch.ones(50, 8)
    torch.manual_seed(1)
    first = Dropout(0.5, "a")(x, context([50]))
    torch.manual_seed(1)
    assert torch.equal(Dropout(0.5, "b")(x, context([50])), first)


@pytest.mark.parametrize("p,train", [(0.5, False), (0.0, True)])
def test_dropout_that_drops_nothing_draws_nothing(p: float, train: bool) -> None:
    x, before = torch.rand(5, 8), torch.get_rng_state()
    assert torch.equal(Dropout(p, "a").train(train)(x, context([5])), x)
    assert torch.equal(torch.get_rng_state(), before)


def test_null_parts_change_nothing() -> None:
    x, ctx = torch.rand(3, 8), context([3])
    assert NoNorm()(x, ctx) is x
    assert Position().embed(x, ctx) is x
    tables = Position().prepare(ctx)
    assert tables.rotate(x, x) == (x, x) and tables.biases(0) == []
    assert Placement().enter(x, ctx) is x and Placement().leave(x, NoNorm(), ctx) is x


def test_what_a_part_must_write_itself() -> None:
    x, ctx = torch.rand(3, 8), context([3])
    with pytest.raises(NotImplementedError):
        Norm()(x, ctx)
    with pytest.raises(NotImplementedError):
        FFN()(x, ctx)
    with pytest.raises(NotImplementedError):
        Placement()(x, NoNorm(), ctx)
    for draw in (lambda i: i.weight(x, None), lambda i: i.bias(x, 1, None)):
        with pytest.raises(NotImplementedError):
            draw(Init(None))
    with pytest.raises(NotImplementedError):
        Init(None).embedding(x, torch.Generator())


def test_counting_an_embedding_does_not_import_the_compiler() -> None:
    code = (
        "import sys; from encoderkit import build; build('position=learned', device='meta');"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
