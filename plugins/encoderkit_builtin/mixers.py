"""Mixers that are no softmax attention."""

from __future__ import annotations

import torch
from torch import Tensor

from encoderkit.nn import Attention, Ctx, Mixer, Site, by_sequence
from encoderkit_builtin.catalogue_attentions import LinearOptions

FLOOR = 1e-6  # of the sum of weights, which float32 loses where all features are below e^-100


class Linear(Attention):
    """Attention without a softmax, in time linear in the length (arXiv 2006.16236).

    phi(q_i) sum_j phi(k_j) v_j^T / max(phi(q_i) sum_j phi(k_j), 1e-6), with phi(x) = elu(x) + 1.
    Positions that turn queries and keys turn phi(q) and phi(k) above the line (arXiv 2104.09864).

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, opts: LinearOptions, site: Site) -> None:
        super().__init__(opts, site, n_kv_heads=opts.n_kv_heads)

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the mixed tokens."""
        q, k, v = self.project(x, ctx)
        plain = features(q), features(k)
        turned = ctx.pos[self.position].rotate(*plain)
        q, k = (torch.cat(pair, 2) for pair in zip(turned, plain, strict=True))  # (N, H, 2 K)
        y: Tensor = self.out(self.attend(q, k, v, ctx).to(v.dtype).flatten(1))  # (N, D)
        return y

    def attend(self, q: Tensor, k: Tensor, v: Tensor, ctx: Ctx) -> Tensor:
        """Return the mean of the values by weight; q and k hold features, turned and plain.

        Shapes: q, k (N, H, 2 K), v (N, H, K) -> (N, H, K)
        """
        return by_sequence(summed, q, k, v.to(q.dtype), ctx)


def features(x: Tensor) -> Tensor:
    """Return elu(x) + 1, as e^x where it is below 1, in float32 at least."""
    x = x if x.dtype == torch.float64 else x.float()
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def summed(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return what each query makes of the sums over keys and values.

    Shapes: q, k (B, H, T, 2 K), v (B, H, T, K), seen (B, 1, 1, T) -> (B, H, T, K)
    """
    if seen is not None:
        k = k * seen.transpose(2, 3)
    (turned_q, plain_q), (turned_k, plain_k) = (t.chunk(2, 3) for t in (q, k))
    sums = turned_k.transpose(2, 3) @ v  # (B, H, K, K)
    weight = plain_q @ plain_k.sum(2)[..., None]  # (B, H, T, 1)
    return (turned_q @ sums) / weight.clamp(min=FLOOR)  # (B, H, T, K)


class FNet(Mixer):
    """Mixes by Fourier transforms, without parameters (arXiv 2105.03824).

    Re(FFT_T(FFT_D(x))), over the tokens of each sequence and the channels; float32 at least.

    Shapes: x (N, D) -> (N, D)
    """

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the mixed tokens."""
        wide = x if x.dtype == torch.float64 else x.float()
        rows = torch.split(wide, [count * length for count, length in ctx.runs])  # (B T, D) each
        grids = [t.view(*run, x.shape[1]) for t, run in zip(rows, ctx.runs, strict=True) if len(t)]
        mixed = [torch.fft.fft2(t).real.flatten(0, 1) for t in grids]  # (B T, D) each
        return torch.cat([wide[:0], *mixed]).to(x.dtype)  # (N, D)
