"""The base class of each kind of part that stands in a stack, and what parts share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderkit.nn.context import Ctx, key, seeded
from encoderkit.nn.site import Site

Branch = Callable[[Tensor, Ctx], Tensor]
Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


class Piece(nn.Module):
    """A part of a stack, built as `cls(opts, site)`."""

    owns_init: ClassVar[bool] = False  # True: the init part leaves its weights alone

    def __init__(self, opts: Any = None, site: Site | None = None) -> None:
        super().__init__()


class Norm(Piece):
    """Normalises tokens.

    Shapes: x (N, D) -> (N, D)
    """

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the normalised tokens."""
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward


class NoNorm(Norm):
    """Leaves x as it is."""

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return x."""
        return x


class Placement(Piece):
    """Joins a branch f, its norms N and the residual stream; its line of code is its equation.

    Shapes: x (N, D) -> (N, D)
    """

    final_norm: ClassVar[bool] = False  # True: a norm follows the last layer
    equation: ClassVar[str] = "placement(x, f)"

    def forward(self, x: Tensor, f: Branch, ctx: Ctx) -> Tensor:
        """Return the new residual stream."""
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward


class FFN(Piece):
    """Transforms each token by itself.

    Shapes: x (N, D) -> (N, D)
    """

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the transformed tokens."""
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward


class Tables:
    """What a position part prepared for a batch; this one turns nothing."""

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys with their positions in them.

        Shapes: q, k (N, H, K) -> (N, H, K)
        """
        return q, k


class Position(Piece):
    """Tells the stack the order of tokens; this one says nothing."""

    def embed(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return x with its positions added, once before the first layer.

        Shapes: x (N, D) -> (N, D)
        """
        return x

    def prepare(self, ctx: Ctx) -> Tables:
        """Return what the attention of every layer asks for, made once per forward."""
        return Tables()


class HasBias(Protocol):
    """The options that `Attention` itself reads."""

    bias: bool


class Attention(Piece):
    """Owns the q, k, v and out projections and the head split; a backend overrides `attend`.

    out(attend(rotate(q(x), k(x)), v(x)))

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, opts: HasBias, site: Site) -> None:
        super().__init__()
        d = site.d_model
        self.heads = site.n_heads
        self.position = site.position()
        self.q = nn.Linear(d, d, bias=opts.bias)
        self.k = nn.Linear(d, d, bias=opts.bias)
        self.v = nn.Linear(d, d, bias=opts.bias)
        self.out = nn.Linear(d, d, bias=opts.bias)

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the mixed tokens."""
        q, k, v = (w(x).unflatten(1, (self.heads, -1)) for w in (self.q, self.k, self.v))
        q, k = ctx.pos[self.position].rotate(q, k)  # (N, H, K)
        y: Tensor = self.out(self.attend(q, k, v, ctx).flatten(1))  # (N, D)
        return y

    def attend(self, q: Tensor, k: Tensor, v: Tensor, ctx: Ctx) -> Tensor:
        """Return, for each query, the mean of its sequence's values, weighted by attention.

        Shapes: q, k, v (N, H, K) -> (N, H, K)
        """
        raise NotImplementedError

    if TYPE_CHECKING:
        __call__ = forward


def by_sequence(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, ctx: Ctx) -> Tensor:
    """Call `kernel(q, k, v, keys)` on every sequence; neighbours of one length share a call.

    Packed, `keys` is None, and a batch of equal lengths is one call on views. Dense, there is one
    call, and `keys` (B, 1, 1, S) is True for the keys to look at, or None for all.

    Shapes: q, k, v (N, H, K) -> (N, H, K); inside the kernel (B, H, T, K) -> (B, H, T, K)
    """
    if ctx.layout == "dense":
        return _grid(kernel, q, k, v, ctx.shape, ctx.keys())
    if len(ctx.runs) == 1:
        return _grid(kernel, q, k, v, ctx.runs[0], None)
    # split, not slices: the gradient of a slice is a whole (N, H, K) of zeros, for each sequence.
    sizes = [count * length for count, length in ctx.runs]
    qs, ks, vs = (torch.split(t, sizes) for t in (q, k, v))
    runs = zip(qs, ks, vs, ctx.runs, strict=True)
    outs = [_grid(kernel, q, k, v, run, None) for q, k, v, run in runs]
    return torch.cat([v[:0], *outs])  # (N, H, K)


def _grid(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, shape: tuple[int, int], keys: Tensor | None
) -> Tensor:
    """Call `kernel` once, on B sequences of length T.

    Shapes: q, k, v (B T, H, K) -> (B T, H, K)
    """
    b, t = shape
    h, width = v.shape[1:]
    q, k, v = (x.reshape(b, t, h, width).transpose(1, 2) for x in (q, k, v))  # (B, H, T, K)
    return kernel(q, k, v, keys).transpose(1, 2).reshape(b * t, h, width)  # (B T, H, K)


def embedding(rows: int, width: int) -> nn.Embedding:
    """Return a table that the init part fills, with no draws of its own.

    nn.Embedding's own draw on the meta device imports torch._dynamo, 1.5 s for a mere count.
    """
    table: nn.Embedding = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
        torch.zeros(rows, width), freeze=False
    )
    return table


class Dropout(nn.Module):
    """Drops elements with probability p in training, by a mask that (seed, step, path) decides.

    Without a step torch's global generator decides. In eval, or at p = 0, nothing is drawn.

    Shapes: any
    """

    def __init__(self, p: float, path: str) -> None:
        super().__init__()
        self.p = p
        self.path = path

    @property
    def rate(self) -> float:
        """The probability in force."""
        return self.p if self.training else 0.0

    def keyed(self, ctx: Ctx, device: torch.device) -> AbstractContextManager[None]:
        """Return a context in which torch's own dropout draws this part's mask."""
        if self.rate == 0 or ctx.step is None:
            return nullcontext()
        return seeded(key(ctx.seed, ctx.step, self.path), device)

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return x with elements dropped, the others divided by 1 - p."""
        if self.rate == 0:
            return x
        with self.keyed(ctx, x.device):
            return F.dropout(x, self.p)

    if TYPE_CHECKING:
        __call__ = forward


class Init:
    """Draws weights into float32 tensors on the CPU, each from its own generator."""

    def __init__(self, opts: Any) -> None:
        pass

    def weight(self, t: Tensor, generator: torch.Generator) -> None:
        """Fill the weight of a linear map.

        Shapes: t (fan_out, fan_in)
        """
        raise NotImplementedError

    def bias(self, t: Tensor, fan_in: int, generator: torch.Generator) -> None:
        """Fill the bias of a linear map.

        Shapes: t (fan_out)
        """
        raise NotImplementedError

    def embedding(self, t: Tensor, generator: torch.Generator) -> None:
        """Fill a table of embeddings.

        Shapes: t (rows, D)
        """
        raise NotImplementedError
