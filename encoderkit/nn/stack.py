"""The encoder: packs tokens at its door, runs the layers, restores the shape on the way out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderkit.api import Layout, Traits
from encoderkit.errors import InputError
from encoderkit.nn.base import Norm, Placement, Position
from encoderkit.nn.context import SILENT, Ctx, Out, dense, packed


class Parallel(nn.Module):
    """Branches side by side: the sum of what each makes of x (arXiv 2204.02311).

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, branches: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the sum."""
        first, *others = self.children()
        y: Tensor = first(x, ctx)
        for branch in others:
            y = y + branch(x, ctx)
        return y


class Sublayer(nn.Module):
    """A branch, times `scale`, in its placement; neighbours with one `stream` share streams.

    Shapes: x (N, ...) -> (N, ...)
    """

    def __init__(
        self, branch: nn.Module, placement: Placement, scale: float = 1.0, stream: str = ""
    ) -> None:
        super().__init__()
        self.branch = branch
        self.placement = placement
        self.scale = scale
        self.stream = stream

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the residual stream after this sublayer."""
        return self.placement(x, self.branch if self.scale == 1 else self.scaled, ctx)

    def scaled(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return what the branch makes of x, times the scale.

        Shapes: x (N, D) -> (N, D)
        """
        y: Tensor = self.branch(x, ctx)
        return self.scale * y


class EncoderStack(nn.Module):
    """A stack of encoder layers; `encoderkit.build` makes one.

    `position` holds the position parts by name, `embed_norm` the norm before the first layer,
    `layers[i][slot]` a Sublayer, `final` the last norm; `traits` what the parts in use declare, by
    "kind=name"; `slots` says which part stands where, "kind=name" by path; `seed` keys the dropout.
    """

    def __init__(
        self,
        d_model: int,
        position: nn.ModuleDict,
        embed_norm: Norm,
        layers: nn.ModuleList,
        final: Norm,
        traits: Mapping[str, Traits],
        seed: int,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.position = position
        self.embed_norm = embed_norm
        self.layers = layers
        self.final = final
        self.traits = dict(traits)
        self.slots: dict[str, str] = {}
        self.seed = seed
        self.layout: Layout = "packed"

    def use_layout(self, layout: Layout) -> Self:
        """Choose how tokens are laid out inside, and return the stack.

        Packed has no padding in it; dense has shapes that do not depend on the data, which
        `torch.compile(fullgraph=True)` and `torch.export` need.

        Errors: InputError for a part that does not know the layout, by name.
        """
        if layout not in ("packed", "dense"):
            raise InputError(f"layout={layout!r}: must be packed or dense.")
        for part, traits in self.traits.items():
            if layout not in traits.layouts:
                raise InputError(
                    f"{part} works in the {', '.join(sorted(traits.layouts))} layout only, "
                    f"not in {layout}. Choose another {part.partition('=')[0]}."
                )
        self.layout = layout
        return self

    def forward(
        self,
        x: Tensor,
        valid: Tensor | None = None,
        *,
        lengths: Sequence[int] | Tensor | None = None,
        positions: Tensor | None = None,
        step: int | None = None,
        out: Out | None = None,
    ) -> Tensor:
        """Return the encoded tokens in the shape of x, zeros in the padded slots.

        `valid` is True for a real token, and without it all are real; `positions` replaces the
        count of real tokens in each row; `step` keys the dropout; `out` collects what parts hand
        out. Whatever stands in a padded slot of x reaches nothing.

        Shapes: x (B, S, D), valid and positions (B, S) -> (B, S, D); or packed, x (N, D) with
        lengths (B) and positions (N) -> (N, D)

        Errors: InputError.
        """
        self.check(x, valid, lengths, positions)
        if lengths is not None:
            tokens, ctx, leave = enter_packed(x, lengths, positions)
        elif self.layout == "dense":
            tokens, ctx, leave = enter_dense(x, valid, positions)
        else:
            tokens, ctx, leave = enter_padded(x, valid, positions)
        ctx.seed, ctx.step, ctx.out = self.seed, step, SILENT if out is None else out
        return leave(self.encode(tokens, ctx))

    if TYPE_CHECKING:
        __call__ = forward

    def encode(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Run positions, norms and layers on tokens inside the door.

        Shapes: x (N, D) -> (N, D)
        """
        for name, part in self.position.items():
            position = cast(Position, part)
            x = position.embed(x, ctx)
            ctx.pos[name] = position.prepare(ctx)
        x = self.embed_norm(x, ctx)
        before: Sublayer | None = None
        for layer in self.layers:
            for module in cast(nn.ModuleDict, layer).values():
                sublayer = cast(Sublayer, module)
                if before is None or before.stream != sublayer.stream:
                    x = x if before is None else before.placement.leave(x, unchanged, ctx)
                    x = sublayer.placement.enter(x, ctx)
                x = sublayer(x, ctx)
                before = sublayer
        return self.final(x, ctx) if before is None else before.placement.leave(x, self.final, ctx)

    def check(
        self,
        x: Tensor,
        valid: Tensor | None,
        lengths: Sequence[int] | Tensor | None,
        positions: Tensor | None,
    ) -> None:
        """Refuse what does not fit together.

        Errors: InputError.
        """
        tensors: dict[str, object] = {"x": x, "valid": valid, "positions": positions}
        for name, value in tensors.items():
            if not isinstance(value, Tensor) and (value is not None or name == "x"):
                raise InputError(f"{name}: must be a tensor; it is {type(value).__name__}.")
        shape, d = tuple(x.shape), self.d_model
        if x.dim() != (3 if lengths is None else 2) or shape[-1] != d:
            wanted = f"(B, S, {d}), or (N, {d}) with lengths"
            given = "without lengths" if lengths is None else "with lengths"
            raise InputError(f"x: must be {wanted}; it is {shape} {given}.")
        if valid is not None and valid.dtype != torch.bool:
            raise InputError(
                f"valid: must be torch.bool, True for a real token; it is {valid.dtype}. "
                "Try valid.bool()."
            )
        if valid is not None and valid.shape != x.shape[:-1]:
            raise InputError(
                f"valid: must be (B, S) as in x {shape}; it is {tuple(valid.shape)}. "
                "Packed tokens need no valid."
            )
        if positions is not None and positions.shape != x.shape[:-1]:
            raise InputError(
                f"positions: one for each slot of x {shape}; they are {tuple(positions.shape)}."
            )
        if positions is not None and positions.dtype not in (torch.int64, torch.int32):
            raise InputError(f"positions: must be int64 or int32; they are {positions.dtype}.")
        if self.layout == "dense":
            self.check_dense(lengths)

    def check_dense(self, lengths: Sequence[int] | Tensor | None) -> None:
        """Refuse what the dense layout cannot do.

        Errors: InputError.
        """
        if lengths is not None:
            raise InputError("lengths: packed tokens do not fit the dense layout; give (B, S, D).")
        coupled = [part for part, traits in self.traits.items() if traits.batch_coupled]
        if self.training and coupled:
            raise InputError(
                f"{', '.join(coupled)}: in training it would count padding in the dense layout. "
                'Use the packed layout, use_layout("packed"), or eval().'
            )


def unchanged(x: Tensor, ctx: Ctx) -> Tensor:
    """Return x: where streams end before the last layer there is no final norm."""
    return x


class Door(NamedTuple):
    """Tokens inside the stack, their context, and the way out."""

    tokens: Tensor
    ctx: Ctx
    leave: Callable[[Tensor], Tensor]


def enter_packed(x: Tensor, lengths: Sequence[int] | Tensor, positions: Tensor | None) -> Door:
    """Take tokens that are packed already.

    Shapes: x (N, D), lengths (B), positions (N)

    Errors: InputError for lengths that are no whole numbers, or do not add up to N.
    """
    try:
        sizes = [index(n) for n in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]
    except TypeError as error:
        raise InputError(f"lengths: must be B whole numbers; they are {lengths!r}.") from error
    if sum(sizes) != x.shape[0] or min(sizes, default=0) < 0:
        raise InputError(
            f"lengths: must be at least 0 and add up to the {x.shape[0]} tokens of x; "
            f"they add up to {sum(sizes)}, and the least is {min(sizes, default=0)}."
        )
    ctx = packed(sizes, (len(sizes), max(sizes, default=0)), x.device)
    (span,) = read(extent(positions, None))
    return Door(x, placed(ctx, positions, span), lambda y: y)


def enter_padded(x: Tensor, valid: Tensor | None, positions: Tensor | None) -> Door:
    """Drop the padding; where there is none, this is a view.

    Shapes: x (B, S, D), valid and positions (B, S)
    """
    b, s, d = x.shape
    counts = None if valid is None else valid.sum(1)  # (B)
    sizes, span = read(counts, extent(positions, valid))
    ctx = packed([s] * b if valid is None else sizes, (b, s), x.device)
    flat = x.reshape(b * s, d)  # (B S, D)
    where = None if positions is None else positions.reshape(b * s)  # (B S)
    if valid is None or sum(sizes) == b * s:
        return Door(flat, placed(ctx, where, span), lambda y: y.view(b, s, d))  # (B, S, D)
    slots = real_slots(valid, sum(sizes))  # (N)
    where = None if where is None else where[slots]  # (N)
    return Door(
        flat.index_select(0, slots),  # (N, D)
        placed(ctx, where, span),
        lambda y: y.new_zeros(b * s, d).index_copy(0, slots, y).view(b, s, d),  # (B, S, D)
    )


def real_slots(valid: Tensor, n: int) -> Tensor:
    """Return where in B S the n real tokens are, without waiting for the device as nonzero does.

    Shapes: valid (B, S) -> (N)
    """
    flat = valid.flatten()  # (B S)
    # Each real slot goes to its rank, all others to a place that is cut off.
    ranks = torch.where(flat, flat.cumsum(0) - 1, n)  # (B S)
    slots = torch.arange(flat.shape[0], device=flat.device)  # (B S)
    return slots.new_empty(n + 1).scatter_(0, ranks, slots)[:n]  # (N)


def enter_dense(x: Tensor, valid: Tensor | None, positions: Tensor | None) -> Door:
    """Keep the padding, emptied, so that no shape depends on the data.

    Shapes: x (B, S, D), valid and positions (B, S)
    """
    b, s, d = x.shape
    ctx = dense(valid, (b, s), x.device)
    if positions is not None:
        # The range of positions is data: a compiled graph cannot look at it.
        known = None if torch.compiler.is_compiling() else extent(positions, valid)
        # Whatever stands in a padded slot, a table may be looked up there.
        real = positions if valid is None else positions.masked_fill(~valid, 0)  # (B, S)
        ctx = placed(ctx, real.reshape(b * s), read(known)[0] or [0, s - 1])
    if valid is None:
        return Door(x.reshape(b * s, d), ctx, lambda y: y.view(b, s, d))  # (B, S, D)
    empty = ~valid[..., None]  # (B, S, 1)
    return Door(
        x.masked_fill(empty, 0).reshape(b * s, d),  # (B S, D)
        ctx,
        lambda y: y.view(b, s, d).masked_fill(empty, 0),  # (B, S, D)
    )


def read(*tensors: Tensor | None) -> list[list[int]]:
    """Bring small integer tensors to Python in one transfer; None becomes an empty list."""
    held = [t.flatten().long() for t in tensors if t is not None]
    values = iter(torch.cat(held).tolist() if held else [])
    return [list(islice(values, 0 if t is None else t.numel())) for t in tensors]


def extent(positions: Tensor | None, valid: Tensor | None) -> Tensor | None:
    """Return the least and the largest position of real tokens, 0 among them.

    Shapes: positions and valid (B, S) or (N) -> (2)
    """
    if positions is None:
        return None
    real = positions if valid is None else positions.where(valid, 0)
    real = F.pad(real.flatten(), (0, 1))  # (N+1)
    return torch.stack([real.amin(), real.amax()])  # (2)


def placed(ctx: Ctx, positions: Tensor | None, span: list[int]) -> Ctx:
    """Return the context with the caller's positions in place of its own, if there are any.

    Errors: InputError for a negative position.
    """
    if positions is not None:
        if span[0] < 0:
            raise InputError(f"positions: must be at least 0; the least is {span[0]}.")
        ctx.positions, ctx.n_positions, ctx.counted = positions, span[1] + 1, False
    return ctx
