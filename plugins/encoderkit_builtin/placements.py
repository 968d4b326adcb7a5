"""Placements: where the norm N and the residual stand around a branch f."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from encoderkit.nn import Branch, Ctx, Placement, Site
from encoderkit_builtin.catalogue import LayerScaleOptions


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


class Sandwich(Placement):
    """x + N(f(N(x))), and a norm after the last layer (arXiv 2105.13290, 2502.02732).

    The two norms of a sublayer have weights of their own.

    Shapes: x (N, D) -> (N, D)
    """

    final_norm = True
    equation = "x + N(f(N(x)))"

    def __init__(self, opts: Any, site: Site) -> None:
        super().__init__()
        self.before = site.norm()
        self.after = site.norm()

    def forward(self, x: Tensor, f: Branch, ctx: Ctx) -> Tensor:
        """Return the new residual stream."""
        y: Tensor = x + self.after(f(self.before(x, ctx), ctx), ctx)
        return y


class Reordered(Placement):
    """x + N(f(x)), and a norm after the last layer (arXiv 2111.09883, 2501.00656).

    Shapes: x (N, D) -> (N, D)
    """

    final_norm = True
    equation = "x + N(f(x))"

    def __init__(self, opts: Any, site: Site) -> None:
        super().__init__()
        self.after = site.norm()

    def forward(self, x: Tensor, f: Branch, ctx: Ctx) -> Tensor:
        """Return the new residual stream."""
        y: Tensor = x + self.after(f(x, ctx), ctx)
        return y


class LayerScale(Placement):
    """x + g * f(N(x)), and a norm after the last layer (arXiv 2103.17239).

    g is a learned gain for each channel, small at the start.

    Shapes: x (N, D) -> (N, D)
    """

    final_norm = True
    equation = "x + g * f(N(x))"

    def __init__(self, opts: LayerScaleOptions, site: Site) -> None:
        super().__init__()
        self.before = site.norm()
        self.gain = nn.Parameter(torch.full((site.d_model,), opts.start))

    def forward(self, x: Tensor, f: Branch, ctx: Ctx) -> Tensor:
        """Return the new residual stream."""
        y: Tensor = x + self.gain * f(self.before(x, ctx), ctx)
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
