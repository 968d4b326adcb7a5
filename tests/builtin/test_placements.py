from __future__ import annotations

import pytest
import torch
from torch import Tensor

import encoderkit
from encoderkit.nn import Ctx, Norm, Placement
from encoderkit.testing import make_ctx, make_site
from encoderkit_builtin.catalogue import LayerScaleOptions
from encoderkit_builtin.placements import (
    LayerScale,
    NoResidual,
    Post,
    Pre,
    Reordered,
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
