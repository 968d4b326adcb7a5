from __future__ import annotations

import pytest
import torch
from torch import Tensor

from encoderkit.errors import ConfigError
from encoderkit.nn import Attention, Mixer, NoNorm, by_sequence
from encoderkit.nn.build import build
from encoderkit.nn.context import Ctx, dense, packed

CPU = torch.device("cpu")
Seen = Tensor | None


def context(lengths: list[int]) -> Ctx:
    return packed(lengths, (len(lengths), max(lengths, default=0)), CPU)


def test_by_sequence_hands_each_run_of_equal_lengths_over_once() -> None:
    calls: list[tuple[int, ...]] = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, seen: Seen, bias: Seen) -> Tensor:
        assert seen is None and bias is None
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
    y = by_sequence(lambda q, k, v, seen, bias: q, q, q, q, context([3, 3]))
    assert y.data_ptr() == q.data_ptr()


def test_by_sequence_of_nothing() -> None:
    q = torch.rand(0, 4, 5, requires_grad=True)
    by_sequence(lambda q, k, v, seen, bias: q, q, q, q, context([])).sum().backward()
    assert q.grad is not None and q.grad.shape == (0, 4, 5)


def test_by_sequence_dense_tells_what_is_seen() -> None:
    valid = torch.tensor([[True, False], [True, True]])

    def kernel(q: Tensor, k: Tensor, v: Tensor, seen: Seen, bias: Seen) -> Tensor:
        assert seen is not None
        return q * seen.transpose(2, 3)

    q = torch.rand(4, 3, 5)
    y = by_sequence(kernel, q, q, q, dense(valid, (2, 2), CPU))
    assert torch.equal(y, q * valid.view(4, 1, 1))


def seen_by(ctx: Ctx, window: int) -> list[Seen]:
    """What a kernel is told about each run."""
    found: list[Seen] = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, seen: Seen, bias: Seen) -> Tensor:
        found.append(seen)
        return v

    x = torch.rand(len(ctx.positions), 1, 2)
    by_sequence(kernel, x, x, x, ctx, window=window)
    return found


def test_a_window_reaches_to_both_sides() -> None:
    short, long = seen_by(context([2, 4]), 1)
    assert short is None  # nothing is out of reach
    assert long is not None and long.shape == (1, 1, 4, 4)
    band = [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert long[0, 0].int().tolist() == band


def test_a_window_counts_positions() -> None:
    ctx = context([3])
    ctx.positions, ctx.counted = torch.tensor([0, 5, 6]), False
    (seen,) = seen_by(ctx, 1)
    assert seen is not None and seen[0, 0].int().tolist() == [[1, 0, 0], [0, 1, 1], [0, 1, 1]]


def test_a_dense_window_skips_padding_and_leaves_no_query_blind() -> None:
    valid = torch.tensor([[True, False, True, True], [False] * 4])
    (seen,) = seen_by(dense(valid, (2, 4), CPU), 1)
    assert seen is not None
    # Token 2 is at position 1, a neighbour of token 0; token 3 at position 2 is not.
    rows = [[1, 0, 1, 0], [1, 0, 1, 0], [1, 0, 1, 1], [0, 0, 1, 1]]
    assert seen[0, 0].int().tolist() == rows
    assert seen[1].all()


def test_biases_reach_the_kernel_run_by_run() -> None:
    found: list[Seen] = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, seen: Seen, bias: Seen) -> Tensor:
        found.append(bias)
        return v

    x, biases = torch.rand(5, 1, 2), [torch.rand(1, 1, 2, 2), torch.rand(1, 1, 3, 3)]
    by_sequence(kernel, x, x, x, context([2, 3]), biases=biases)
    assert all(a is b for a, b in zip(found, biases, strict=True))


def test_queries_and_keys_may_be_wider_than_values() -> None:
    def kernel(q: Tensor, k: Tensor, v: Tensor, seen: Seen, bias: Seen) -> Tensor:
        assert q.shape[3] == k.shape[3] == 6 and v.shape[3] == 2
        return v * q.sum(3, keepdim=True)

    q, v = torch.rand(5, 3, 6), torch.rand(5, 3, 2)
    y = by_sequence(kernel, q, q, v, context([2, 3]))
    assert torch.allclose(y, v * q.sum(2, keepdim=True))


def test_groups_of_query_heads_share_keys_and_values() -> None:
    few = build("model=tiny", "model.n_heads=4", "attention.n_kv_heads=2")
    full = build("model=tiny", "model.n_heads=4")
    assert few.layers[0]["attention"].branch.k.weight.shape == (32, 64)
    weights = few.state_dict()
    for name, value in weights.items():
        if name.endswith((".k.weight", ".v.weight")):  # each head of 16 rows stands twice
            weights[name] = value.view(2, 1, 16, 64).expand(2, 2, 16, 64).reshape(64, 64)
    full.load_state_dict(weights)
    x = torch.rand(2, 5, 64)
    torch.testing.assert_close(few(x), full(x))


def test_key_heads_must_divide_query_heads() -> None:
    with pytest.raises(ConfigError) as error:
        build("model.n_heads=4", "attention.n_kv_heads=3")
    assert str(error.value) == (
        "attention.n_kv_heads=3: must divide model.n_heads=4. Try attention.n_kv_heads=2."
    )


@pytest.mark.parametrize("over", ["head", "all"])
def test_norms_after_q_and_k(over: str) -> None:
    stack = build("norm=rmsnorm", f"attention.qk_norm={over}", "model.n_heads=2", "position=none")
    branch = stack.layers[0]["attention"].branch
    width = 32 if over == "head" else 64
    norms = [p for name, p in branch.named_parameters() if "norm" in name]
    assert [tuple(p.shape) for p in norms] == [(width,)] * 2
    seen: list[Tensor] = []
    branch.attend = lambda q, k, v, ctx: seen.extend((q, k)) or v
    stack(torch.rand(1, 5, 64) * 100)
    for t in seen:
        rms = t.square().mean((2,) if over == "head" else (1, 2)).sqrt()
        torch.testing.assert_close(rms, torch.ones_like(rms))


def test_a_norm_of_q_and_k_needs_a_norm() -> None:
    with pytest.raises(ConfigError) as error:
        build("norm=none", "attention.qk_norm=head")
    assert str(error.value).startswith("attention.qk_norm=head: has no effect with norm=none.")


def test_what_attention_must_write_itself() -> None:
    x, ctx = torch.rand(3, 8), context([3])
    with pytest.raises(NotImplementedError):
        Mixer()(x, ctx)
    with pytest.raises(NotImplementedError):
        Attention.attend(NoNorm(), x, x, x, ctx)  # type: ignore[arg-type]
