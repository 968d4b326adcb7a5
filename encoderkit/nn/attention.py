"""The base of attention: projections, heads, and the road from packed tokens to a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from encoderkit.errors import ConfigError, Fault
from encoderkit.nn.base import NoNorm, Norm, Piece
from encoderkit.nn.context import Ctx
from encoderkit.nn.site import Site

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], Tensor]


class Mixer(Piece):
    """Mixes the tokens of each sequence; any map from x to x that keeps sequences apart.

    Shapes: x (N, D) -> (N, D)
    """

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the mixed tokens."""
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward


class HasBias(Protocol):
    """The options that `Attention` itself reads."""

    bias: bool


class Attention(Mixer):
    """Owns the q, k, v and out projections and the head split; a backend overrides `attend`.

    out(attend(rotate(q(x), k(x)), v(x)))

    With fewer key and value heads, groups of neighbouring query heads share one (arXiv 2305.13245).
    With `qk_norm` the chosen norm stands after q and k, over each head ("head", arXiv 2302.05442)
    or over all channels ("all").

    Shapes: x (N, D) -> (N, D)

    Errors: ConfigError for key and value heads that do not divide the query heads, and for a
    `qk_norm` where there is no norm.
    """

    selects = ("q", "k")

    def __init__(
        self, opts: HasBias, site: Site, *, n_kv_heads: int | None = None, qk_norm: str = "none"
    ) -> None:
        super().__init__()
        d, self.heads = site.d_model, site.n_heads
        groups = site.n_heads if n_kv_heads is None else n_kv_heads
        if site.n_heads % groups:
            problem = f"must divide model.n_heads={site.n_heads}."
            fits = [h for h in range(1, site.n_heads + 1) if site.n_heads % h == 0]
            close = min(fits, key=lambda h: abs(h - groups))
            hint = f"Try attention.n_kv_heads={close}."
            raise ConfigError([Fault(f"attention.n_kv_heads={groups}", problem, hint)])
        self.width = head = d // site.n_heads
        self.share = site.n_heads // groups
        self.layer, self.position = site.layer, site.position()
        self.q = nn.Linear(d, d, bias=opts.bias)
        self.k = nn.Linear(d, groups * head, bias=opts.bias)
        self.v = nn.Linear(d, groups * head, bias=opts.bias)
        self.out = nn.Linear(d, d, bias=opts.bias)
        self.per_head = qk_norm == "head"
        self.q_norm, self.k_norm = _qk_norms(site, qk_norm, head, groups * head)

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the mixed tokens."""
        q, k, v = self.project(x, ctx)
        q, k = ctx.pos[self.position].rotate(q, k)
        y: Tensor = self.out(self.attend(q, k, v, ctx).flatten(1))  # (N, D)
        return y

    def project(self, x: Tensor, ctx: Ctx) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values before any position is in them.

        Shapes: x (N, D) -> (N, H, K) each
        """
        n, held = x.shape[0], self.heads // self.share
        q = self.normed(self.q_norm, self.q(x), ctx).view(n, self.heads, self.width)  # (N, H, K)
        k = self.normed(self.k_norm, self.k(x), ctx).view(n, held, self.width)  # (N, H/share, K)
        v = self.v(x).view(n, held, self.width)  # (N, H/share, K)
        if self.share > 1:
            k, v = (t.repeat_interleave(self.share, 1) for t in (k, v))  # (N, H, K)
        return q, k, v

    def normed(self, norm: Norm, x: Tensor, ctx: Ctx) -> Tensor:
        """Return queries or keys, normalised head by head or all channels together.

        Shapes: x (N, H K) -> (N, H K)
        """
        rows = x.view(-1, self.width) if self.per_head else x  # (N H, K)
        return norm(rows, ctx).view(x.shape)  # (N, H K)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, ctx: Ctx) -> Tensor:
        """Return, for each query, the mean of its sequence's values, weighted by attention.

        Shapes: q, k, v (N, H, K) -> (N, H, K)
        """
        raise NotImplementedError

    def biases(self, ctx: Ctx) -> list[Tensor]:
        """Return what this layer's position adds to the scores: see `Tables.biases`."""
        found: list[Tensor] = ctx.pos[self.position].biases(self.layer)
        return found


def _qk_norms(site: Site, over: str, head: int, keys: int) -> tuple[Norm, Norm]:
    """Return the norms after q and k.

    Errors: ConfigError where there is no norm to put there.
    """
    if over == "none":
        return NoNorm(), NoNorm()
    wide = over == "all"
    norms = site.norm(site.d_model if wide else head), site.norm(keys if wide else head)
    if isinstance(norms[0], NoNorm):
        where = f"attention.qk_norm={over}"
        raise ConfigError([Fault(where, "has no effect with norm=none.", "Choose a norm.")])
    return norms


def by_sequence(
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ctx: Ctx,
    *,
    biases: Sequence[Tensor] = (),
    window: int | None = None,
) -> Tensor:
    """Call `kernel(q, k, v, seen, bias)` on every sequence; neighbours of one length share a call.

    `seen` is True where a query may look, None where it may look anywhere: only at keys whose
    position is at most `window` away, and dense only at real tokens. `bias` is what the position
    adds to the scores, or None; `biases` has one for each run, or none.

    Shapes: q, k, v (N, H, K) -> (N, H, K), where q and k may be wider than v; inside the kernel
    (B, H, T, K) -> (B, H, T, K), seen (1 or B, 1, 1 or T, T), bias (1 or B, H, T, T)
    """
    runs = [ctx.shape] if ctx.layout == "dense" else ctx.runs
    masks = [ctx.keys()] * len(runs)
    if window is not None:
        masks = [_near(rows, window, ctx) for rows in ctx.rows()]
    added: Sequence[Tensor | None] = biases or [None] * len(runs)
    if len(runs) == 1:
        return _grid(kernel, q, k, v, runs[0], masks[0], added[0])
    # split, not slices: the gradient of a slice is a whole (N, H, K) of zeros, for each sequence.
    sizes = [count * length for count, length in runs]
    cut = (torch.split(t, sizes) for t in (q, k, v))
    outs = [_grid(kernel, *one) for one in zip(*cut, runs, masks, added, strict=True)]
    return torch.cat([v[:0], *outs])  # (N, H, K)


def _near(rows: Tensor, window: int, ctx: Ctx) -> Tensor | None:
    """Return which keys are near enough for a query to see, None where all are.

    A query that would see no key, as a padded one may, sees all: a softmax over nothing is NaN.

    Shapes: rows (1 or B, T) -> (1 or B, 1, T, T)
    """
    if ctx.counted and rows.shape[1] <= window + 1:
        return ctx.keys()
    apart = (rows[:, :, None] - rows[:, None, :]).abs()  # (1 or B, T, T)
    seen = (apart <= window)[:, None]  # (1 or B, 1, T, T)
    keys = ctx.keys()
    if keys is None:
        return seen
    seen = seen & keys  # (B, 1, T, T)
    return seen | ~seen.any(3, keepdim=True)


def _grid(
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shape: tuple[int, int],
    seen: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Call `kernel` once, on B sequences of length T.

    Shapes: q, k, v (B T, H, K) -> (B T, H, K)
    """
    b, t = shape
    h, width = v.shape[1:]
    q, k, v = (x.reshape(b, t, h, x.shape[2]).transpose(1, 2) for x in (q, k, v))  # (B, H, T, K)
    return kernel(q, k, v, seen, bias).transpose(1, 2).reshape(b * t, h, width)  # (B T, H, K)
