from __future__ import annotations

import pytest
import torch
from torch import Tensor

from encoderkit.nn import Ctx, Norm, Placement
from encoderkit.testing import make_ctx, make_site
from encoderkit_builtin.placements import NoResidual, Post, Pre


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
