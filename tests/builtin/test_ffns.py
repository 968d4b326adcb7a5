from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import encoderkit
from encoderkit.testing import make_ctx, make_site
from encoderkit_builtin.catalogue_ffns import GLUOptions, MLPOptions
from encoderkit_builtin.ffns import GLU, MLP, gated_width

ACTS: dict[str, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * (1 + math.erf(x / 2**0.5)) / 2,
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "mish": lambda x: x * math.tanh(math.log(1 + math.exp(x))),
    "identity": lambda x: x,
    "gelu_tanh": lambda x: x * (1 + math.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
}


def act(name: str, x: Tensor) -> Tensor:
    return torch.tensor([[ACTS[name](v) for v in row] for row in x.tolist()], dtype=x.dtype)


def tokens(n: int = 5) -> Tensor:
    return torch.randn(n, 8, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("name", MLPOptions.__dataclass_fields__["act"].metadata["range"].choices)
def test_mlp_is_its_equation(name: str) -> None:
    mlp, x = MLP(MLPOptions(act=name), make_site(d_model=8, d_ff=20)).double(), tokens()
    inner = act(name, x @ mlp.up.weight.T + mlp.up.bias)
    assert inner.shape == (5, 20)
    wanted = inner @ mlp.down.weight.T + mlp.down.bias
    assert torch.allclose(mlp(x, make_ctx([5])), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", GLUOptions.__dataclass_fields__["act"].metadata["range"].choices)
def test_glu_is_its_equation(name: str) -> None:
    glu, x = GLU(GLUOptions(act=name), make_site(d_model=8, d_ff=24)).double(), tokens()
    inner = act(name, x @ glu.gate.weight.T) * (x @ glu.up.weight.T)
    assert inner.shape == (5, 16)
    assert torch.allclose(glu(x, make_ctx([5])), inner @ glu.down.weight.T, rtol=0, atol=1e-12)


def test_an_mlp_without_an_activation_is_one_linear_map() -> None:
    mlp = MLP(MLPOptions(act="identity", bias=False), make_site(d_model=8, d_ff=20)).double()
    one = (mlp.down.weight @ mlp.up.weight).T
    assert torch.allclose(mlp(tokens(), make_ctx([5])), tokens() @ one, rtol=0, atol=1e-12)


PRESETS = {
    **{name: MLPOptions(act=name) for name in ("relu", "gelu", "silu", "relu2")},
    "swiglu": GLUOptions(act="silu"),
    "geglu": GLUOptions(act="gelu"),
    "reglu": GLUOptions(act="relu"),
    "bilinear": GLUOptions(act="identity"),
    "sigmoid_glu": GLUOptions(act="sigmoid"),
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_means_what_its_paper_says(name: str) -> None:
    assert encoderkit.configure(f"ffn={name}").ffn.options == PRESETS[name]


def test_width_and_bias_are_options() -> None:
    site = make_site(d_model=8, d_ff=24)
    shapes = {
        name: tuple(p.shape)
        for name, p in MLP(MLPOptions(width=3, bias=False), site).named_parameters()
    }
    assert shapes == {"up.weight": (3, 8), "down.weight": (8, 3)}
    glu = dict(GLU(GLUOptions(width=5, bias=True), site).named_parameters())
    assert tuple(glu["gate.weight"].shape) == (5, 8)
    assert {name for name in glu if name.endswith("bias")} == {"up.bias", "gate.bias", "down.bias"}


@pytest.mark.parametrize(
    "d_ff,width", [(256, 168), (1024, 680), (2048, 1368), (24, 16), (18, 16), (17, 8), (1, 8)]
)
def test_a_gated_width_is_the_multiple_of_8_nearest_to_two_thirds(d_ff: int, width: int) -> None:
    assert gated_width(d_ff) == width
    best = min(range(8, 8 * d_ff + 16, 8), key=lambda w: (abs(w - 2 * d_ff / 3), -w))
    assert width == best


@pytest.mark.parametrize("cls,options", [(MLP, MLPOptions), (GLU, GLUOptions)])
def test_dropout_falls_on_the_inner_activations(cls: type, options: type) -> None:
    ffn = cls(options(dropout=0.5, width=4, bias=False), make_site(d_model=8))
    seen: list[Tensor] = []
    ffn.down.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    x, ctx = torch.rand(200, 8) + 1, make_ctx([200])
    ctx.step = 1
    with torch.no_grad():
        for parameter in ffn.parameters():
            parameter.fill_(1)
        ffn(x, ctx)
        ffn.eval()(x, ctx)
    ratio = seen[0] / seen[1]
    assert set(ratio.round(decimals=4).unique().tolist()) == {0.0, 2.0}
    assert 0.4 < float((ratio > 0).float().mean()) < 0.6


def test_the_gradient_is_that_of_the_equation() -> None:
    glu = GLU(GLUOptions(act="gelu"), make_site(d_model=8, d_ff=24)).double()
    x = tokens().requires_grad_()
    assert torch.autograd.gradcheck(lambda t: glu(t, make_ctx([5])), (x,))
