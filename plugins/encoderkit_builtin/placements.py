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


class DeepNorm(Placement):
    """N(alpha x + f(x)), with the weights of f times beta at the start (arXiv 2203.00555).

    alpha = (2 L)^(1/4), beta = (8 L)^(-1/4): the paper's encoder of L layers, two branches each.

    Shapes: x (N, D) -> (N, D)
    """

    equation = "N(alpha x + f(x))"

    def __init__(self, opts: Any, site: Site) -> None:
        super().__init__()
        self.after = site.norm()
        self.alpha = (2 * site.n_layers) ** 0.25
        self.branch_gain = (8 * site.n_layers) ** -0.25

    def forward(self, x: Tensor, f: Branch, ctx: Ctx) -> Tensor:
        """Return the new residual stream."""
        y: Tensor = self.after(self.alpha * x + f(x, ctx), ctx)
        return y


class Residual2(Placement):
    """N(x + f(x)) as in post, and beside it a stream s + f(x) as in pre (ResiDual).

    Both start as what enters; x + N(s) leaves, by the final norm (arXiv 2304.14802).

    Shapes: x (N, D) -> (N, D); between sublayers (N, 2, D)
    """

    final_norm = True
    equation = "N(x + f(x)), s = s + that f(x)"
    ending = "x + N(s)"

    def __init__(self, opts: Any, site: Site) -> None:
        super().__init__()
        self.after = site.norm()

    def enter(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return two streams."""
        return torch.stack([x, x], 1)  # (N, 2, D)

    def forward(self, x: Tensor, f: Branch, ctx: Ctx) -> Tensor:
        """Return the new streams."""
        post, dual = x.unbind(1)  # (N, D) each
        y = f(post, ctx)
        return torch.stack([self.after(post + y, ctx), dual + y], 1)  # (N, 2, D)

    def leave(self, x: Tensor, final: Branch, ctx: Ctx) -> Tensor:
        """Return the sum of the first and the normalised second."""
        post, dual = x.unbind(1)  # (N, D) each
        return post + final(dual, ctx)


class ReZero(Placement):
    """x + a f(x), one learned a for each branch, 0 at the start, and no norm (arXiv 2003.04887).

    Shapes: x (N, D) -> (N, D)
    """

    equation = "x + a f(x)"

    def __init__(self, opts: Any, site: Site) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, f: Branch, ctx: Ctx) -> Tensor:
        """Return the new residual stream."""
        y: Tensor = x + self.gain * f(x, ctx)
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
