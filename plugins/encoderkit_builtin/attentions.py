"""Attention backends: softmax(q k^T / sqrt(K)) v within each sequence."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from encoderkit.nn import Attention, Ctx, Dropout, Site, by_sequence
from encoderkit_builtin.catalogue import AttentionOptions


class Naive(Attention):
    """Attention as it is written, the reference (arXiv 1706.03762); records its weights.

    softmax(q k^T / sqrt(K)) v; the record named after the layer and slot, such as
    "layers.0.attention", holds one (H, T, T) for each sequence.

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, opts: AttentionOptions, site: Site) -> None:
        super().__init__(opts, site, n_kv_heads=opts.n_kv_heads, qk_norm=opts.qk_norm)
        self.window, self.softcap = opts.window, opts.softcap
        self.dropout = Dropout(opts.dropout, site.path)
        self.record = site.path.removesuffix(".branch")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, ctx: Ctx) -> Tensor:
        """Return the mean of the values by weight."""

        def kernel(
            q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, bias: Tensor | None
        ) -> Tensor:
            scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5  # (B, H, T, T)
            if self.softcap is not None:
                scores = self.softcap * (scores / self.softcap).tanh()
            if bias is not None:
                scores = scores + bias
            if seen is not None:
                scores = scores.masked_fill(~seen, float("-inf"))
            weights = scores.softmax(3)
            ctx.out.each(self.record, weights)
            dropped = F.dropout(weights, self.dropout.rate) if self.dropout.rate else weights
            return dropped.to(v.dtype) @ v  # (B, H, T, K)

        with self.dropout.keyed(ctx, q.device):
            biases = self.biases(ctx)
            return by_sequence(kernel, q, k, v, ctx, biases=biases, window=self.window)


class SDPA(Attention):
    """The same through torch's scaled_dot_product_attention, which picks a fused kernel.

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, opts: AttentionOptions, site: Site) -> None:
        super().__init__(opts, site, n_kv_heads=opts.n_kv_heads, qk_norm=opts.qk_norm)
        self.window = opts.window
        self.dropout = Dropout(opts.dropout, site.path)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, ctx: Ctx) -> Tensor:
        """Return the mean of the values by weight."""
        rate = self.dropout.rate

        def kernel(
            q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, bias: Tensor | None
        ) -> Tensor:
            mask = seen
            if bias is not None:
                mask = bias if seen is None else bias.masked_fill(~seen, float("-inf"))
                mask = mask.to(q.dtype)
            return F.scaled_dot_product_attention(q, k, v, mask, rate)

        with self.dropout.keyed(ctx, q.device):
            biases = self.biases(ctx)
            return by_sequence(kernel, q, k, v, ctx, biases=biases, window=self.window)
