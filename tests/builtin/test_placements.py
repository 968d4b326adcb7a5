from __future__ import annotations

import pytest
import torch
from torch import Tensor

import encoderkit
from encoderkit.errors import ConfigError
from encoderkit.nn import Ctx, EncoderStack, Norm, Placement
from encoderkit.testing import make_ctx, make_site
from encoderkit_builtin.catalogue import LayerScaleOptions
from encoderkit_builtin.placements import (
    DeepNorm,
    LayerScale,
    NoResidual,
    Post,
    Pre,
    Reordered,
    Residual2,
    ReZero,
    Sandwich,
)


def equation(text: str, norm: Norm, x: Tensor) -> Tensor:
    """Return what an equation over x, f and N says, with f(x) = x^2 + 1."""
    letters = {"x": x, "f": lambda t: t**2 + 1, "N": lambda t: norm(t, make_ctx([3]))}
    found: Tensor = eval(text, letters)
    return found


@pytest.mark.parametrize(
    "cls,text,final,name",
    [
        (Pre, "x + f(N(x))", True, "before"),
        (Post, "N(x + f(x))", False, "after"),
        (Sandwich, "x + N(f(N(x)))", True, "after"),
        (Reordered, "x + N(f(x))", True, "after"),
        (NoResidual, "N(f(x))", False, "after"),
    ],
)
def test_a_placement_is_its_equation(
    cls: type[Placement], text: str, final: bool, name: str
) -> None:
    placement = cls(None, make_site(d_model=8))
    norm = getattr(placement, name)
    x, seen = torch.rand(3, 8), []

    def branch(t: Tensor, ctx: Ctx) -> Tensor:
        seen.append(ctx)
        return t**2 + 1

    ctx = make_ctx([3])
    assert torch.allclose(placement(x, branch, ctx), equation(text, norm, x))
    assert seen == [ctx] and cls.equation == text and cls.final_norm is final


def square(t: Tensor, ctx: Ctx) -> Tensor:
    return t**2 + 1


def test_layerscale_is_its_equation() -> None:
    placement, x = LayerScale(LayerScaleOptions(start=0.3), make_site(d_model=8)), torch.rand(3, 8)
    assert placement.gain.tolist() == pytest.approx([0.3] * 8)
    with torch.no_grad():
        placement.gain.copy_(torch.arange(8))
    normed = placement.before(x, make_ctx([3]))
    wanted = x + torch.arange(8) * (normed**2 + 1)
    assert torch.allclose(placement(x, square, make_ctx([3])), wanted)
    assert placement.equation == "x + g * f(N(x))" and placement.final_norm


def test_the_two_norms_of_a_sandwich_are_two() -> None:
    stack = encoderkit.build("placement=sandwich", "model.n_layers=1")
    names = {name for name, _ in stack.named_parameters() if "attention.placement" in name}
    ends = {f"{norm}.{tensor}" for norm in ("before", "after") for tensor in ("weight", "bias")}
    assert names == {f"layers.0.attention.placement.{end}" for end in ends}


@pytest.mark.parametrize("name", ["sandwich", "reordered", "layerscale"])
def test_a_placement_with_a_final_norm_ends_in_one(name: str) -> None:
    stack = encoderkit.build(f"placement={name}", "position=none", "model.n_layers=1")
    y = stack(torch.randn(2, 5, 64) * 7 + 3)
    assert bool((y.mean(2).abs() < 1e-5).all())


def small(*words: str) -> EncoderStack:
    sizes = ["model.d_model=16", "model.n_heads=2", "model.n_layers=3", "position=none"]
    return encoderkit.build(*sizes, *words, dtype=torch.float64)


@pytest.mark.parametrize(
    ("layers", "alpha", "beta"),
    [(1, 2**0.25, 8**-0.25), (2, 2**0.5, 0.5), (8, 2.0, 8**-0.5), (18, 2.4494897428, 0.2886751346)],
)
def test_deepnorm_is_its_equation_at_any_depth(layers: int, alpha: float, beta: float) -> None:
    placement, x = DeepNorm(None, make_site(d_model=8, n_layers=layers)), torch.rand(3, 8)
    assert placement.alpha == pytest.approx(alpha) and not placement.final_norm
    assert placement.branch_gain == pytest.approx(beta)
    text = placement.equation.replace("alpha x", f"{alpha} * x")
    wanted = equation(text, placement.after, x)
    assert torch.allclose(placement(x, square, make_ctx([3])), wanted)


@pytest.mark.parametrize("ffn", ["gelu", "swiglu", "moe"])
def test_deepnorm_scales_the_weights_of_branches_and_no_other_tensor(ffn: str) -> None:
    words = [f"ffn={ffn}", "ffn.bias=true", "attention.bias=true"]
    ours, theirs = (small(f"placement={p}", *words).state_dict() for p in ("deepnorm", "post"))
    assert ours.keys() == theirs.keys()
    scaled = set()
    for name, t in theirs.items():
        if not torch.equal(ours[name], t):
            scaled.add(name.rpartition("branch.")[2])
            assert torch.allclose(ours[name], t * 24**-0.25, rtol=1e-6, atol=0)
            assert name.startswith("layers.")
    maps = {
        "gelu": {"up.weight", "down.weight"},
        "swiglu": {"up.weight", "gate.weight", "down.weight"},
        "moe": {f"experts.{n}.{m}.weight" for n in range(8) for m in ("up", "down")},
    }
    assert scaled == maps[ffn] | {"v.weight", "out.weight"}


def test_residual2_is_its_equations_in_a_stack() -> None:
    stack, x = small("placement=residual2").eval(), torch.randn(5, 16).double()
    with torch.no_grad():
        for p in stack.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    ctx = make_ctx([5])
    post = dual = x
    for layer in stack.layers:
        for sublayer in layer.values():  # type: ignore[operator]
            made = sublayer.branch(post, ctx)
            post, dual = sublayer.placement.after(post + made, ctx), dual + made
    wanted = post + stack.final(dual, ctx)
    assert torch.allclose(stack(x, lengths=[5]), wanted, rtol=0, atol=1e-12)
    assert Residual2.final_norm


def test_residual2_may_do_without_its_final_norm() -> None:
    stack, x = small("placement=residual2", "model.final_norm=false"), torch.randn(5, 16).double()
    kept, seen = stack.layers[-1]["ffn"], []  # type: ignore[index]
    kept.register_forward_hook(lambda _, args, out: seen.append(out))
    y = stack(x, lengths=[5])
    assert seen[0].shape == (5, 2, 16) and torch.equal(y, seen[0].sum(1))


def test_rezero_starts_as_nothing_and_is_its_equation() -> None:
    stack, x = small("placement=rezero", "norm=none"), torch.randn(2, 5, 16).double()
    assert torch.equal(stack(x), x)
    placement, rows = ReZero(None, make_site(d_model=8)), torch.rand(3, 8)
    with torch.no_grad():
        placement.gain.fill_(0.7)
    assert torch.allclose(placement(rows, square, make_ctx([3])), rows + 0.7 * (rows**2 + 1))
    assert placement.equation == "x + a f(x)" and not placement.final_norm
    names = [name for name, _ in stack.named_parameters() if "placement" in name]
    assert names == [
        f"layers.{n}.{s}.placement.gain" for n in range(3) for s in ("attention", "ffn")
    ]


def test_a_norm_beside_rezero_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        small("placement=rezero")
    (fault,) = error.value.faults
    assert fault.where == "norm=layernorm" and fault.hint == "Try norm=none."
    assert fault.problem == "no part asks for a norm with placement=rezero."
    small("placement=rezero", "attention.qk_norm=head")
    small("placement=rezero", "model.final_norm=true")


@pytest.mark.parametrize("words", [["deepnorm"], ["residual2"], ["rezero", "norm=none"]])
def test_a_placement_learns(words: list[str]) -> None:
    torch.manual_seed(0)
    stack = small(f"placement={words[0]}", *words[1:]).train()
    x, target = torch.randn(2, 12, 16).double()
    adam, losses = torch.optim.Adam(stack.parameters(), lr=1e-2), []
    for _ in range(60):
        loss = (stack(x, lengths=[5, 7]) - target).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
