"""Partial RMSNorm itself: imported when a model with `norm=prmsnorm` is built."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from encoderkit.nn import Ctx, Norm, Site
from encoderkit_prmsnorm import PRMSNormOptions


class PRMSNorm(Norm):
    """Scales each token by the root mean square of its first channels (pRMSNorm, arXiv 1910.07467).

    gain * x / sqrt(mean(x[:k]^2) + eps), k = ceil(share * D)

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, opts: PRMSNormOptions, site: Site) -> None:
        super().__init__()
        # Rounded first: 0.07 * 100 is 7.000000000000001, and 7 channels are meant.
        self.channels = max(1, math.ceil(round(opts.share * site.d_model, 9)))
        self.eps = opts.eps
        self.gain = nn.Parameter(torch.ones(site.d_model))

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the scaled tokens, in the dtype of x."""
        wide = torch.promote_types(x.dtype, torch.float32)  # squares of 300 overflow in float16
        square = x[:, : self.channels].to(wide).square().mean(1, keepdim=True)  # (N, 1)
        return (self.gain * (x * torch.rsqrt(square + self.eps))).to(x.dtype)
