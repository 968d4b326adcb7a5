"""The attention-free mixer itself: imported when a model with `attention=aft` is built."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderkit.nn import Ctx, Mixer, Site, by_sequence
from encoderkit_aft import AFTOptions


class AFT(Mixer):
    """Attention without queries that meet keys: each channel is a mean of its own (AFT-conv).

    y_t = out(sigmoid(q_t) * sum_s exp(k_s + w_(s-t)) v_s / sum_s exp(k_s + w_(s-t)))

    w is learned for each head and each distance up to `reach`, and 0 beyond; it starts at 0, as
    AFT-simple (arXiv 2105.14103).

    Shapes: x (N, D) -> (N, D)
    """

    selects = ("q", "k")

    def __init__(self, opts: AFTOptions, site: Site) -> None:
        super().__init__()
        self.heads, self.width = site.n_heads, site.d_model // site.n_heads
        self.reach = opts.reach
        self.q = nn.Linear(site.d_model, site.d_model, bias=opts.bias)
        self.k = nn.Linear(site.d_model, site.d_model, bias=False)
        self.v = nn.Linear(site.d_model, site.d_model, bias=opts.bias)
        self.out = nn.Linear(site.d_model, site.d_model, bias=opts.bias)
        self.w = nn.Parameter(torch.zeros(site.n_heads, 2 * opts.reach + 1))

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the mixed tokens."""
        shape = (x.shape[0], self.heads, self.width)
        q, k, v = (part(x).view(shape) for part in (self.q, self.k, self.v))  # (N, H, K)
        biases = [self.near(rows) for rows in ctx.rows()]
        means = by_sequence(mean, q, k, v, ctx, biases=biases)  # (N, H, K)
        y: Tensor = self.out((q.sigmoid() * means).flatten(1))  # (N, D)
        return y

    def near(self, rows: Tensor) -> Tensor:
        """Return w_(s-t) for every pair of places, from their positions.

        Shapes: rows (1 or B, T) -> (1 or B, H, T, T)
        """
        far = self.reach + 1
        table = F.pad(self.w, (1, 1))  # (H, 2 far + 1), 0 at both ends
        apart = (rows[:, None, :] - rows[:, :, None]).clamp(-far, far)  # (1 or B, T, T)
        return table[:, apart + far].transpose(0, 1)  # (1 or B, H, T, T)


def mean(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return the weighted mean of the values for each place and channel; q is not read.

    Both softmaxes divide by what the quotient divides out again, so that no exp overflows.

    Shapes: q, k, v (B, H, T, K), seen (B, 1, 1, T), bias (1 or B, H, T, T) -> (B, H, T, K)
    """
    wide = torch.promote_types(v.dtype, torch.float32)
    if seen is not None:
        k = k.masked_fill(~seen.mT, float("-inf"))
    assert bias is not None  # `forward` gives one for each run
    keys, near, values = k.softmax(2, wide), bias.softmax(3, wide), v.to(wide)
    return ((near @ (keys * values)) / (near @ keys)).to(v.dtype)  # (B, H, T, K)
