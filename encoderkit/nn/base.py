"""The base class of each kind of part that stands in a stack, and what parts share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderkit.nn.context import Ctx, key, seeded
from encoderkit.nn.site import Site

Branch = Callable[[Tensor, Ctx], Tensor]


class Piece(nn.Module):
    """A part of a stack, built as `cls(opts, site)`."""

    owns_init: ClassVar[bool] = False  # True: the init part leaves its weights alone
    selects: ClassVar[tuple[str, ...]] = ()  # maps that choose only; no branch gain reaches them

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

    A placement with several streams makes them in `enter`, and one again in `leave`; between them x
    is what `enter` returned.

    Shapes: x (N, D) -> (N, D); f takes and returns (N, D)
    """

    final_norm: ClassVar[bool] = False  # True: a norm follows the last layer
    equation: ClassVar[str] = "placement(x, f)"
    ending: ClassVar[str] = "N(x)"  # what `leave` does with the final norm
    branch_gain: float = 1.0  # what the init multiplies the weights of a branch with

    def enter(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return what the first of the sublayers with this placement gets.

        Shapes: x (N, D) -> (N, ...)
        """
        return x

    def forward(self, x: Tensor, f: Branch, ctx: Ctx) -> Tensor:
        """Return the new residual stream."""
        raise NotImplementedError

    def leave(self, x: Tensor, final: Branch, ctx: Ctx) -> Tensor:
        """Return one stream again, after the last of the sublayers; `final` is the final norm.

        Shapes: x (N, ...) -> (N, D)
        """
        return final(x, ctx)

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
    """What a position part prepared for a batch; this one turns and adds nothing."""

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys with their positions in them.

        Shapes: q, k (N, H, K) -> (N, H, K)
        """
        return q, k

    def biases(self, layer: int) -> list[Tensor]:
        """Return what is added to the scores of a layer, for each run of `ctx.rows()`, or nothing.

        Shapes: -> (1 or B, H, T, T) for each run
        """
        return []


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

    def branch_gain(self, n_layers: int) -> float:
        """Return what the weights of every branch are multiplied with, in a stack of n_layers.

        The maps that a part lists under `selects`, such as q and k, keep theirs.
        """
        return 1.0

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
