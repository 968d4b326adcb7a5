"""Placements: where the norm N and the residual stand around a branch f."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from encoderkit.nn import Branch, Ctx, Placement, Site


class Pre(Placement):
    """x + f(N(x)), and a norm after the last layer (arXiv 2002.04745).

    Shapes: x (N, D) -> (N, D)
    """

    final_norm = True
    equation = "x + f(N(x))"

    def __init__(self, opts: Any, site: Site) -> None:
        super().__init__()
        self.before = site.norm()

    def forward(self, x: Tensor, f: Branch, ctx: Ctx) -> Tensor:
        """Return the new residual stream."""
        return x + f(self.before(x, ctx), ctx)


class Post(Placement):
    """N(x + f(x)) (arXiv 1706.03762).

    Shapes: x (N, D) -> (N, D)
    """

    equation = "N(x + f(x))"

    def __init__(self, opts: Any, site: Site) -> None:
        super().__init__()
        self.after = site.norm()

    def forward(self, x: Tensor, f: Branch, ctx: Ctx) -> Tensor:
        """Return the new residual stream."""
        y: Tensor = self.after(x + f(x, ctx), ctx)
        return y


class NoResidual(Placement):
    """N(f(x)): a control that shows what the residual is worth.

    Shapes: x (N, D) -> (N, D)
    """

    equation = "N(f(x))"

    def __init__(self, opts: Any, site: Site) -> None:
        super().__init__()
        self.after = site.norm()

    def forward(self, x: Tensor, f: Branch, ctx: Ctx) -> Tensor:
        """Return the normalised branch."""
        y: Tensor = self.after(f(x, ctx), ctx)
        return y
