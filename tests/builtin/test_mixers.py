from __future__ import annotations

import pytest
import torch
from torch import Tensor

from encoderkit.errors import InputError
from encoderkit.nn import Tables
from encoderkit.nn.build import build
from encoderkit.nn.context import dense
from encoderkit.testing import make_ctx, make_site
from encoderkit_builtin.catalogue_positions import RoPEOptions
from encoderkit_builtin.catalogue_attentions import LinearOptions
from encoderkit_builtin.mixers import FNet, Linear
from encoderkit_builtin.positions import RoPE

LENGTHS = [3, 3, 1, 0, 5]


def make(**options: int) -> Linear:
    torch.manual_seed(0)
    site = make_site(d_model=16, n_heads=2, slot="attention")
    return Linear(LinearOptions(**options), site).double()


def tokens(n: int = sum(LENGTHS)) -> Tensor:
    return torch.randn(n, 16, generator=torch.Generator().manual_seed(0)).double()


def weights(q: Tensor, k: Tensor) -> Tensor:
    """phi(q) phi(k) / sum, of one head."""
    both = [torch.nn.functional.elu(t) + 1 for t in (q, k)]
    scores = both[0] @ both[1].T
    return scores / scores.sum(1, keepdim=True)


def test_linear_is_attention_with_another_similarity() -> None:
    linear, x = make(), tokens()
    rows = []
    for part in x.split(LENGTHS):
        q, k, v = (w(part).view(-1, 2, 8) for w in (linear.q, linear.k, linear.v))
        heads = [weights(q[:, h], k[:, h]) @ v[:, h] for h in range(2)]
        rows.append(torch.cat(heads, 1))
    y = linear(x, make_ctx(LENGTHS))
    assert torch.allclose(y, linear.out(torch.cat(rows)), rtol=0, atol=1e-12)


def test_linear_shares_keys_and_values() -> None:
    few, full, x = make(n_kv_heads=1), make(), tokens()
    state = few.state_dict()
    state |= {f"{n}.weight": state[f"{n}.weight"].repeat(2, 1) for n in ("k", "v")}
    full.load_state_dict(state)
    a, b = (linear(x, make_ctx(LENGTHS)) for linear in (few, full))
    assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_linear_turned_depends_on_distance_alone() -> None:
    linear, x = make(), tokens(5)
    rope = RoPE(RoPEOptions(), make_site(d_model=16, n_heads=2))
    found = []
    for start in (0, 40):
        ctx = make_ctx([5])
        ctx.positions = ctx.positions + start
        ctx.pos["none"] = rope.prepare(ctx)
        found.append(linear(x, ctx))
    assert torch.allclose(found[0], found[1], rtol=0, atol=1e-5)  # float32 angles
    plain = linear(x, make_ctx([5]))
    assert float((found[0] - plain).detach().abs().max()) > 1e-2


def test_linear_skips_padding() -> None:
    linear, x = make(), tokens(8)
    valid = torch.tensor([[True, False, True, True], [False] * 4])
    ctx = dense(valid, (2, 4), torch.device("cpu"))
    ctx.pos["none"] = Tables()
    y, real = linear(x, ctx), valid.flatten()
    assert bool(y.isfinite().all())
    assert torch.allclose(y[real], linear(x[real], make_ctx([3, 0])), rtol=0, atol=1e-12)


def test_linear_survives_features_that_vanish() -> None:
    linear = make().float()
    with torch.no_grad():
        linear.q.weight.fill_(-1e3)
        linear.k.weight.fill_(-1e3)
    x = torch.ones(3, 16, requires_grad=True)
    y = linear(x, make_ctx([3]))
    y.sum().backward()
    assert bool(y.isfinite().all()) and x.grad is not None and bool(x.grad.isfinite().all())


@pytest.mark.parametrize("lengths", [LENGTHS, [4, 4, 4], [12], [0]])
def test_fnet_is_the_real_part_of_two_transforms(lengths: list[int]) -> None:
    x = tokens(sum(lengths))
    parts = [
        torch.fft.fft(torch.fft.fft(part, dim=1), dim=0).real
        for part in x.split(lengths)
        if len(part)
    ]
    y = FNet()(x, make_ctx(lengths))
    assert torch.allclose(y, torch.cat([x[:0], *parts]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fnet_transforms_in_float32(dtype: torch.dtype) -> None:
    x = tokens().to(dtype)
    y = FNet()(x, make_ctx(LENGTHS))
    assert torch.equal(y, FNet()(x.float(), make_ctx(LENGTHS)).to(dtype))


def test_fnet_has_no_dense_layout() -> None:
    with pytest.raises(InputError, match="attention=fnet works in the packed layout only"):
        build("attention=fnet", "model.n_layers=1").use_layout("dense")
