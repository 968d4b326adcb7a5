from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from encoderkit.errors import PluginError
from encoderkit.nn.context import SILENT, Out, dense, key, packed, seeded

CPU = torch.device("cpu")


def test_a_key_is_the_same_on_every_machine() -> None:
    assert key(0, "layers.0.ffn.branch.up.weight") == 1467724554086836547
    assert len({key(0, "a", "b"), key(0, "ab"), key(1, "a", "b"), key(0, "a", 1), key(0)}) == 5
    assert 0 <= key(7, "x") < 2**63


def test_seeded_restores_the_generator_even_after_an_error() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), seeded(5, CPU):
        first = torch.rand(4)
        _ = 1 / 0
    assert torch.equal(torch.get_rng_state(), before)
    with seeded(5, CPU):
        assert torch.equal(torch.rand(4), first)


def test_out_adds_losses_and_lists_records() -> None:
    out = Out()
    out.loss("balance", torch.tensor(1.0))
    out.loss("balance", torch.tensor(2.0))
    out.record("a", torch.tensor(1))
    out.each("a", torch.tensor([2, 3]))
    assert out.losses["balance"] == 3
    assert [int(t) for t in out.records["a"]] == [1, 2, 3]


@pytest.mark.parametrize("value", [torch.ones(1), torch.ones(2, 3), 1.0, None])
def test_a_loss_is_a_scalar_tensor(value: Any) -> None:
    with pytest.raises(PluginError, match=r"ctx.out.loss\('balance'\): must be a scalar tensor"):
        Out().loss("balance", value)


def test_silent_keeps_nothing() -> None:
    SILENT.loss("a", torch.tensor(1.0))
    SILENT.record("a", torch.tensor(1.0))
    SILENT.each("a", torch.ones(2))
    assert SILENT.losses == {} and SILENT.records == {}


@given(st.lists(st.integers(0, 5), max_size=7))
def test_packed_says_where_each_token_stands(lengths: list[int]) -> None:
    ctx = packed(lengths, (len(lengths), 5), CPU)
    assert ctx.positions.tolist() == [p for length in lengths for p in range(length)]
    assert ctx.offsets.tolist() == [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    assert ctx.offsets.dtype == torch.int64
    assert [length for count, length in ctx.runs for _ in range(count)] == lengths
    assert all(a[1] != b[1] for a, b in zip(ctx.runs, ctx.runs[1:], strict=False))
    assert ctx.max_len == ctx.n_positions == max(lengths, default=0)
    assert ctx.keys() is None


def test_dense_counts_real_tokens_only() -> None:
    valid = torch.tensor([[False, True, False, True], [False] * 4, [True] * 4])
    ctx = dense(valid, (3, 4), CPU)
    assert ctx.positions.view(3, 4).tolist() == [[0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 2, 3]]
    assert ctx.lengths is None and ctx.max_len == 4 and ctx.offsets.tolist() == [0, 4, 8, 12]
    keys = ctx.keys()
    assert keys is not None and keys.shape == (3, 1, 1, 4)
    assert keys[:, 0, 0].tolist() == [valid[0].tolist(), [True] * 4, [True] * 4]


def test_dense_without_valid_has_no_keys() -> None:
    ctx = dense(None, (2, 3), CPU)
    assert ctx.positions.tolist() == [0, 1, 2, 0, 1, 2] and ctx.keys() is None
