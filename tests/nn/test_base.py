from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from encoderkit.nn.base import (
    FFN,
    Attention,
    Dropout,
    Init,
    NoNorm,
    Norm,
    Placement,
    Position,
    by_sequence,
)
from encoderkit.nn.context import Ctx, dense, packed

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


def test_by_sequence_hands_each_run_of_equal_lengths_over_once() -> None:
    calls: list[tuple[int, ...]] = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, keys: Tensor | None) -> Tensor:
        assert keys is None
        calls.append(tuple(q.shape))
        return q + 2 * k + v.mean(2, keepdim=True)

    lengths = [2, 2, 0, 3, 2]
    q, k, v = torch.rand(3, 9, 4, 5).unbind()
    y = by_sequence(kernel, q, k, v, context(lengths))
    assert calls == [(2, 4, 2, 5), (1, 4, 0, 5), (1, 4, 3, 5), (1, 4, 2, 5)]
    means = [part.mean(0, keepdim=True).expand_as(part) for part in v.split(lengths)]
    assert torch.allclose(y, q + 2 * k + torch.cat(means))


def test_by_sequence_of_equal_lengths_is_a_view() -> None:
    q = torch.rand(6, 4, 5)
    y = by_sequence(lambda q, k, v, keys: q, q, q, q, context([3, 3]))
    assert y.data_ptr() == q.data_ptr()


def test_by_sequence_of_nothing() -> None:
    q = torch.rand(0, 4, 5, requires_grad=True)
    by_sequence(lambda q, k, v, keys: q, q, q, q, context([])).sum().backward()
    assert q.grad is not None and q.grad.shape == (0, 4, 5)


def test_by_sequence_dense_tells_the_keys() -> None:
    valid = torch.tensor([[True, False], [True, True]])

    def kernel(q: Tensor, k: Tensor, v: Tensor, keys: Tensor | None) -> Tensor:
        assert keys is not None
        return q * keys.transpose(2, 3)

    q = torch.rand(4, 3, 5)
    y = by_sequence(kernel, q, q, q, dense(valid, (2, 2), CPU))
    assert torch.equal(y, q * valid.view(4, 1, 1))


def test_null_parts_change_nothing() -> None:
    x, ctx = torch.rand(3, 8), context([3])
    assert NoNorm()(x, ctx) is x
    assert Position().embed(x, ctx) is x
    assert Position().prepare(ctx).rotate(x, x) == (x, x)


def test_what_a_part_must_write_itself() -> None:
    x, ctx = torch.rand(3, 8), context([3])
    with pytest.raises(NotImplementedError):
        Norm()(x, ctx)
    with pytest.raises(NotImplementedError):
        FFN()(x, ctx)
    with pytest.raises(NotImplementedError):
        Placement()(x, NoNorm(), ctx)
    with pytest.raises(NotImplementedError):
        Attention.attend(NoNorm(), x, x, x, ctx)  # type: ignore[arg-type]
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
