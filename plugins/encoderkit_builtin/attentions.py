"""Attention backends: softmax(q k^T / sqrt(K)) v within each sequence."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from encoderkit.nn import (
    Attention,
    ConfigError,
    Ctx,
    Dropout,
    Fault,
    InputError,
    Site,
    by_sequence,
)
from encoderkit_builtin.catalogue_attentions import AttentionOptions


class Naive(Attention):
    """Attention as it is written, the reference (arXiv 1706.03762); records its weights.

    softmax(cap(q k^T / sqrt(K)) + bias) v, with cap(s) = c tanh(s / c) (arXiv 2408.00118) and only
    the keys within a window (arXiv 2004.05150); the record named after the layer and slot, such as
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

    softmax(q k^T / sqrt(K) + bias) v

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


class Flex(Attention):
    """The same through torch's flex_attention: one call over all tokens (arXiv 2412.05496).

    softmax(cap(q k^T / sqrt(K))) v, where a block mask skips what lies in other sequences or
    outside the window. On CUDA the call is compiled; elsewhere, and in float64, torch runs the same
    operator step by step, which takes memory for N^2 scores.

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, opts: AttentionOptions, site: Site) -> None:
        super().__init__(opts, site, n_kv_heads=opts.n_kv_heads, qk_norm=opts.qk_norm)
        self.window, self.softcap = opts.window, opts.softcap

    def attend(self, q: Tensor, k: Tensor, v: Tensor, ctx: Ctx) -> Tensor:
        """Return the mean of the values by weight."""
        if v.shape[0] == 0:
            return v
        sequences, positions, window = _sequences(ctx), ctx.positions, self.window

        def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            same = sequences[i] == sequences[j]
            if window is None:
                return same
            return same & ((positions[i] - positions[j]).abs() <= window)

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return s if self.softcap is None else self.softcap * (s / self.softcap).tanh()

        q, k, v = (t.to(v.dtype).transpose(0, 1)[None] for t in (q, k, v))  # (1, H, N, K)
        return _flex(q, k, v, score, seen)[0].transpose(0, 1)  # (N, H, K)


def _sequences(ctx: Ctx) -> Tensor:
    """Return a number for each token, the same within a sequence; a padded slot has its own.

    Shapes: -> (N)
    """
    at = torch.arange(ctx.positions.shape[0], device=ctx.positions.device)  # (N)
    found = torch.searchsorted(ctx.offsets[1:], at, right=True)  # (N)
    return found if ctx.valid is None else torch.where(ctx.valid.flatten(), found, -1 - at)


def _flex(
    q: Tensor, k: Tensor, v: Tensor, score: Callable[..., Tensor], seen: Callable[..., Tensor]
) -> Tensor:
    """Call flex_attention on all tokens.

    Shapes: q, k, v (1, H, N, K) -> (1, H, N, K)
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n = v.shape[2]
    mask = create_block_mask(seen, None, None, n, n, device=v.device)
    if v.is_cuda and v.dtype != torch.float64:
        call: Callable[..., Any] = _compiled()
        if torch.compiler.is_compiling():
            call = flex_attention
        y: Tensor = call(q, k, v, score_mod=score, block_mask=mask)
        return y
    # The public function refuses gradients on a CPU, which the operator itself has.
    operator = torch.ops.higher_order.flex_attention
    y, *_ = operator(q, k, v, score, mask.as_tuple(), q.shape[3] ** -0.5, {})
    return y


@cache
def _compiled() -> Callable[..., Any]:
    """Return flex_attention, compiled once for all layers."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention)
    return compiled


class Flash(Attention):
    """The same through torch's variable-length kernels, on CUDA in half precision.

    softmax(q k^T / sqrt(K)) v (arXiv 2205.14135), one call for all sequences.

    Shapes: x (N, D) -> (N, D)

    Errors: ConfigError for a torch without such kernels, and a head width that they do not take;
    InputError for positions of the caller's own with a window, which these kernels count by place.
    """

    def __init__(self, opts: AttentionOptions, site: Site) -> None:
        super().__init__(opts, site, n_kv_heads=opts.n_kv_heads, qk_norm=opts.qk_norm)
        self.window = opts.window
        try:
            from torch.nn.attention.varlen import varlen_attn  # noqa: F401
        except ImportError as error:
            problem = f"torch {torch.__version__} has no variable-length attention."
            raise ConfigError(
                [Fault("attention=flash", problem, "Try attention=sdpa, or torch 2.13.")]
            ) from error
        if self.width % 8 or self.width > 256:
            problem = f"attention=flash needs a head width of 8, 16, ... 256; {site.d_model} / "
            problem += f"{site.n_heads} is {self.width}."
            hint = "Try another model.n_heads, or attention=sdpa."
            raise ConfigError([Fault(f"model.n_heads={site.n_heads}", problem, hint)])

    def attend(self, q: Tensor, k: Tensor, v: Tensor, ctx: Ctx) -> Tensor:
        """Return the mean of the values by weight."""
        from torch.nn.attention.varlen import varlen_attn

        if self.window is not None and not ctx.counted:
            raise InputError(
                "positions: attention=flash counts attention.window by place. Leave them out, or "
                "try attention=sdpa."
            )
        if v.shape[0] == 0:
            return v
        reach = -1 if self.window is None else self.window
        ends, most = ctx.offsets.int(), ctx.max_len
        q, k = q.to(v.dtype), k.to(v.dtype)
        y = varlen_attn(q, k, v, ends, ends, most, most, window_size=(reach, reach))
        return cast(Tensor, y)  # a tuple only where more than the result is asked for
