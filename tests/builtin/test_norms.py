from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from encoderkit.errors import InputError
from encoderkit.nn import Norm
from encoderkit.testing import make_ctx, make_site
from encoderkit_builtin.catalogue import (
    BatchNormOptions,
    DerfOptions,
    DyTOptions,
    LayerNormOptions,
    RMSNormOptions,
    ScaleNormOptions,
)
from encoderkit_builtin.norms import BatchNorm, Derf, DyT, LayerNorm, NoNorm, RMSNorm, ScaleNorm


def shaken(norm: Norm) -> Norm:
    """Return the norm in float64 with parameters that are not ones and zeros."""
    norm = norm.double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(torch.randn_like(parameter))
    return norm


def make(name: str, width: int = 8, eps: float = 1e-6) -> Norm:
    site = make_site(d_model=width, n_heads=1)
    torch.manual_seed(0)
    made: dict[str, Norm] = {
        "layernorm": LayerNorm(LayerNormOptions(eps=eps), site),
        "rmsnorm": RMSNorm(RMSNormOptions(eps=eps), site),
        "batchnorm": BatchNorm(BatchNormOptions(eps=eps), site),
        "scalenorm": ScaleNorm(ScaleNormOptions(eps=eps), site),
        "dyt": DyT(DyTOptions(alpha=0.7), site),
        "derf": Derf(DerfOptions(alpha=0.7, shift=-0.2), site),
    }
    return shaken(made[name])


def tokens(n: int, d: int = 8) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(n)).double() * 3 + 1


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_layernorm_is_its_equation(eps: float) -> None:
    norm, x = make("layernorm", eps=eps), tokens(5)
    mean = x.mean(1, keepdim=True)
    variance = ((x - mean) ** 2).mean(1, keepdim=True)
    wanted = norm.weight * (x - mean) / (variance + eps) ** 0.5 + norm.bias
    assert torch.allclose(norm(x, make_ctx([5])), wanted, rtol=0, atol=1e-12)


def test_layernorm_without_a_bias() -> None:
    norm = LayerNorm(LayerNormOptions(bias=False), make_site(d_model=8))
    assert [name for name, _ in norm.named_parameters()] == ["weight"]
    whole = LayerNorm(LayerNormOptions(), make_site(d_model=8))
    assert torch.equal(
        norm(tokens(3).float(), make_ctx([3])), whole(tokens(3).float(), make_ctx([3]))
    )


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_rmsnorm_is_its_equation(eps: float) -> None:
    norm, x = make("rmsnorm", eps=eps), tokens(5)
    wanted = norm.weight * x / ((x**2).mean(1, keepdim=True) + eps) ** 0.5
    assert torch.allclose(norm(x, make_ctx([5])), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1.0, 0.25])
def test_an_rmsnorm_with_an_offset_starts_as_the_plain_one(offset: float) -> None:
    norm = RMSNorm(RMSNormOptions(offset=offset), make_site(d_model=8))
    assert bool((norm.weight == 1 - offset).all())
    x, plain = tokens(5).float(), RMSNorm(RMSNormOptions(), make_site(d_model=8))
    assert torch.equal(norm(x, make_ctx([5])), plain(x, make_ctx([5])))
    with torch.no_grad():
        norm.weight.copy_(torch.arange(8))
        plain.weight.copy_(torch.arange(8) + offset)
    assert torch.equal(norm(x, make_ctx([5])), plain(x, make_ctx([5])))


@pytest.mark.parametrize("eps", [1e-6, 10.0])
def test_scalenorm_is_its_equation(eps: float) -> None:
    norm, x = make("scalenorm", eps=eps), tokens(5)
    length = (x**2).sum(1, keepdim=True) ** 0.5
    assert eps < 1 or 0 < int((length < eps).sum()) < 5
    wanted = norm.gain * x / torch.where(length > eps, length, eps)
    assert torch.allclose(norm(x, make_ctx([5])), wanted, rtol=0, atol=1e-12)


def test_scalenorm_starts_at_the_length_of_a_token_of_unit_variance() -> None:
    norm = ScaleNorm(ScaleNormOptions(), make_site(d_model=16))
    assert norm.gain.shape == () and norm.gain.item() == 4
    assert torch.allclose(norm(torch.rand(3, 16) + 1, make_ctx([3])).norm(dim=1), torch.tensor(4.0))


def test_dyt_is_its_equation_and_starts_where_its_option_says() -> None:
    norm, x = make("dyt"), tokens(5)
    wanted = [[math.tanh(v) for v in row] for row in (norm.alpha * x).tolist()]
    expected = norm.gamma * torch.tensor(wanted, dtype=torch.float64) + norm.beta
    assert torch.allclose(norm(x, make_ctx([5])), expected, rtol=0, atol=1e-12)
    assert DyT(DyTOptions(), make_site(d_model=8)).alpha.item() == 0.5
    fresh = DyT(DyTOptions(alpha=0.75), make_site(d_model=8))
    assert fresh.alpha.item() == 0.75
    assert bool((fresh.gamma == 1).all()) and bool((fresh.beta == 0).all())


def test_derf_is_its_equation_and_starts_where_its_options_say() -> None:
    norm, x = make("derf"), tokens(5)
    inner = (norm.alpha * x + norm.shift).tolist()
    wanted = torch.tensor([[math.erf(v) for v in row] for row in inner], dtype=torch.float64)
    wanted = norm.gamma * wanted + norm.beta
    assert torch.allclose(norm(x, make_ctx([5])), wanted, rtol=0, atol=1e-12)
    fresh = Derf(DerfOptions(), make_site(d_model=8))
    assert (fresh.alpha.item(), fresh.shift.item()) == (0.5, 0.0)
    fresh = Derf(DerfOptions(alpha=0.75, shift=-0.25), make_site(d_model=8))
    assert (fresh.alpha.item(), fresh.shift.item()) == (0.75, -0.25)
    assert bool((fresh.gamma == 1).all()) and bool((fresh.beta == 0).all())


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_batchnorm_is_its_equation_and_moves_its_statistics(eps: float) -> None:
    norm, x = make("batchnorm", eps=eps), tokens(6)
    mean, variance = x.mean(0), ((x - x.mean(0)) ** 2).mean(0)
    wanted = norm.weight * (x - mean) / (variance + eps) ** 0.5 + norm.bias
    assert torch.allclose(norm(x, make_ctx([2, 4])), wanted, rtol=0, atol=1e-12)
    assert torch.allclose(norm.running_mean, 0.1 * mean, rtol=0, atol=1e-12)
    unbiased = variance * 6 / 5
    assert torch.allclose(norm.running_var, 0.9 + 0.1 * unbiased, rtol=0, atol=1e-12)
    norm.eval()
    scale = (norm.running_var + eps) ** 0.5
    wanted = norm.weight * (x - norm.running_mean) / scale + norm.bias
    assert torch.allclose(norm(x, make_ctx([6])), wanted, rtol=0, atol=1e-12)


def test_batchnorm_with_all_the_momentum_keeps_the_last_batch() -> None:
    norm, x = BatchNorm(BatchNormOptions(momentum=1.0), make_site(d_model=8)).double(), tokens(6)
    norm(tokens(4), make_ctx([4]))
    norm(x, make_ctx([6]))
    assert torch.allclose(norm.running_mean, x.mean(0), rtol=0, atol=1e-12)


def test_batchnorm_refuses_one_token_in_training_only() -> None:
    norm = make("batchnorm")
    with pytest.raises(InputError, match="one token has no variance. Give at least 2 tokens"):
        norm(tokens(1), make_ctx([1]))
    assert norm.running_mean.abs().max() == 0
    assert norm.eval()(tokens(1), make_ctx([1])).shape == (1, 8)


def test_batchnorm_of_no_token_changes_nothing() -> None:
    norm = make("batchnorm")
    norm(tokens(0), make_ctx([0, 0])).sum().backward()
    assert norm.running_mean.abs().max() == 0 and bool((norm.running_var == 1).all())
    assert all(bool((p.grad == 0).all()) for p in norm.parameters())


def test_layernorm_looks_along_a_token_and_batchnorm_across_tokens() -> None:
    layer, batch, x = make("layernorm"), make("batchnorm"), tokens(6)
    other = x.clone()
    other[3:] = tokens(3) * 5
    for norm, coupled in ((layer, False), (batch, True)):
        first, second = (norm(t, make_ctx([6]))[:3] for t in (x, other))
        assert torch.allclose(first, second) is not coupled
        fewer = norm(x[:3], make_ctx([3]))
        assert torch.allclose(first, fewer, rtol=0, atol=1e-12) is not coupled
    scaled = x * torch.linspace(0.5, 2, 8)
    alike = [
        torch.allclose(n(x, make_ctx([6])), n(scaled, make_ctx([6])), atol=1e-4)
        for n in (layer, batch)
    ]
    assert alike == [False, True]


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "scalenorm", "dyt", "derf"])
@pytest.mark.parametrize("value", [0.0, 1e-30, 300.0, 3e4])
def test_extreme_rows_stay_finite_in_half_precision(name: str, value: float) -> None:
    norm = make(name, eps=1e-3 if name == "scalenorm" else 1e-6).half()
    x = torch.full((2, 8), value, dtype=torch.float16, requires_grad=True)
    y = norm(x, make_ctx([2]))
    y.sum().backward()
    assert y.dtype == torch.float16 and bool(y.isfinite().all())
    assert x.grad is not None and bool(x.grad.isfinite().all())


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "batchnorm", "scalenorm", "dyt", "derf"])
def test_the_gradient_is_that_of_the_equation(name: str) -> None:
    norm, x = make(name), tokens(4).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: norm(t, make_ctx([4])), (x,))


@pytest.mark.parametrize(
    "norm",
    [
        RMSNorm(RMSNormOptions(), make_site(d_model=8)),
        RMSNorm(RMSNormOptions(offset=1.0), make_site(d_model=8)),
        ScaleNorm(ScaleNormOptions(), make_site(d_model=8)),
        DyT(DyTOptions(), make_site(d_model=8)),
        Derf(DerfOptions(), make_site(d_model=8)),
    ],
)
def test_a_norm_of_bf16_under_a_float32_gain_keeps_bf16(norm: Norm) -> None:
    assert norm(tokens(2).bfloat16(), make_ctx([2])).dtype == torch.bfloat16


def test_none_is_the_identity() -> None:
    x = tokens(3)
    assert NoNorm(None, make_site(d_model=8))(x, make_ctx([3])) is x


@pytest.mark.hazard("own: a bad batch poisons running statistics")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_batch_does_not_stay_in_the_running_statistics(bad: float) -> None:
    norm = BatchNorm(BatchNormOptions(), make_site(d_model=3)).train()
    x, ctx = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), make_ctx([4, 2])
    norm(x, ctx)
    before = [t.clone() for t in (norm.running_mean, norm.running_var)]
    worse = x.clone()
    worse[2, 1] = bad
    assert not norm(worse, ctx)[:, 1].isfinite().any()  # it is seen in the result
    for now, then in zip((norm.running_mean, norm.running_var), before, strict=True):
        assert now.isfinite().all()
        assert now[1] == then[1] and now[0] != then[0]
    assert norm.eval()(x, ctx).isfinite().all()
