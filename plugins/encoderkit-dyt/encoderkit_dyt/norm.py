"""Dynamic Tanh itself: imported when a model with `norm=dyt` is built."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from encoderkit.nn import Ctx, Norm, Site
from encoderkit_dyt import DyTOptions


class DyT(Norm):
    """Dynamic Tanh: gamma * tanh(alpha x) + beta, with one learned alpha (arXiv 2503.10622).

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, opts: DyTOptions, site: Site) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(opts.alpha))
        self.gamma = nn.Parameter(torch.ones(site.d_model))
        self.beta = nn.Parameter(torch.zeros(site.d_model))

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Squash every channel of every token."""
        return self.gamma * torch.tanh(self.alpha * x) + self.beta
