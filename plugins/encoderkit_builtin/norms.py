"""Norms: N in a placement's equation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderkit.nn import Ctx, InputError, NoNorm, Norm, Site
from encoderkit_builtin.catalogue import (
    BatchNormOptions,
    DerfOptions,
    DyTOptions,
    LayerNormOptions,
    RMSNormOptions,
    ScaleNormOptions,
)

__all__ = ["BatchNorm", "Derf", "DyT", "LayerNorm", "NoNorm", "RMSNorm", "ScaleNorm"]


class LayerNorm(Norm):
    """Centres and scales each token over its channels (arXiv 1607.06450).

    gain * (x - mean) / sqrt(var + eps) + bias, with the biased variance

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, opts: LayerNormOptions, site: Site) -> None:
        super().__init__()
        self.eps = opts.eps
        self.weight = nn.Parameter(torch.ones(site.d_model))
        self.bias = nn.Parameter(torch.zeros(site.d_model)) if opts.bias else None

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the normalised tokens."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(Norm):
    """Scales each token by the root mean square of its channels (arXiv 1910.07467).

    (offset + gain) * x / sqrt(mean(x^2) + eps); an offset of 1 is T5Gemma's 1 + w, which starts
    at w = 0

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, opts: RMSNormOptions, site: Site) -> None:
        super().__init__()
        self.eps = opts.eps
        self.offset = opts.offset
        self.weight = nn.Parameter(torch.full((site.d_model,), 1 - opts.offset))

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the normalised tokens."""
        gain = self.weight + self.offset if self.offset else self.weight  # (D)
        # One dtype: torch warns and leaves its fused kernel when gain and x differ (autocast).
        return F.rms_norm(x, gain.shape, gain.to(x.dtype), self.eps)


class BatchNorm(Norm):
    """Centres and scales each channel over all real tokens of the batch (arXiv 1502.03167).

    gain * (x - mean) / sqrt(var + eps) + bias; mean and biased variance of the batch in training,
    and in eval their running means, for which the variance is the unbiased one. A batch without
    tokens changes nothing; one with NaN shows it in its results, and leaves the running means of
    these channels as they were.

    Shapes: x (N, D) -> (N, D)

    Errors: InputError for a training batch of one token, which has no variance.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, opts: BatchNormOptions, site: Site) -> None:
        super().__init__()
        self.eps = opts.eps
        self.momentum = opts.momentum
        self.weight = nn.Parameter(torch.ones(site.d_model))
        self.bias = nn.Parameter(torch.zeros(site.d_model))
        self.register_buffer("running_mean", torch.zeros(site.d_model))
        self.register_buffer("running_var", torch.ones(site.d_model))

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the normalised tokens; in training, move the running statistics."""
        if self.training and x.shape[0] == 1:
            raise InputError(
                "norm=batchnorm: a training batch of one token has no variance. "
                "Give at least 2 tokens, or call eval()."
            )
        running, gains = (self.running_mean, self.running_var), (self.weight, self.bias)
        if not self.training:
            return F.batch_norm(x, *running, *gains, False, self.momentum, self.eps)
        moved = self.running_mean.clone(), self.running_var.clone()
        y = F.batch_norm(x, *moved, *gains, True, self.momentum, self.eps)
        for now, new in zip(running, moved, strict=True):
            now.copy_(torch.where(new.isfinite(), new, now))
        return y


class ScaleNorm(Norm):
    """Brings each token to one learned length (arXiv 1910.05895).

    gain * x / max(|x|, eps), with one gain for all channels that starts at sqrt(D)

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, opts: ScaleNormOptions, site: Site) -> None:
        super().__init__()
        self.eps = opts.eps
        self.gain = nn.Parameter(torch.tensor(site.d_model**0.5))

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the scaled tokens, in the dtype of x."""
        wide = torch.promote_types(x.dtype, torch.float32)  # squares of 300 overflow in float16
        length = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=wide)  # (N, 1)
        y: Tensor = self.gain * (x / length.clamp_min(self.eps))  # (N, D)
        return y.to(x.dtype)


class DyT(Norm):
    """Squashes every channel by a tanh, without statistics (Dynamic Tanh, arXiv 2503.10622).

    gamma * tanh(alpha x) + beta, with one learned alpha

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, opts: DyTOptions, site: Site) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(opts.alpha))
        self.gamma = nn.Parameter(torch.ones(site.d_model))
        self.beta = nn.Parameter(torch.zeros(site.d_model))

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the squashed tokens, in the dtype of x."""
        return (self.gamma * torch.tanh(self.alpha * x) + self.beta).to(x.dtype)


class Derf(Norm):
    """Squashes every channel by a shifted error function, without statistics (arXiv 2512.10938).

    gamma * erf(alpha x + shift) + beta, with one learned alpha and one learned shift

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, opts: DerfOptions, site: Site) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(opts.alpha))
        self.shift = nn.Parameter(torch.tensor(opts.shift))
        self.gamma = nn.Parameter(torch.ones(site.d_model))
        self.beta = nn.Parameter(torch.zeros(site.d_model))

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the squashed tokens, in the dtype of x."""
        return (self.gamma * torch.erf(self.alpha * x + self.shift) + self.beta).to(x.dtype)
