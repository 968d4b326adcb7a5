"""Every kind of part made callable in one way, y = bench(x, ctx), so that one property fits all."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from encoderkit.nn import Ctx, Placement, Position, Tables, by_sequence


class Bench(nn.Module):
    """A norm or FFN by itself.

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return what the part makes of x."""
        y: Tensor = self.part(x, ctx)
        return y


class Turning(Tables):
    """Turns each pair of neighbouring channels by the position; stands in for rope.

    Shapes: angles (N, 1, 1)
    """

    def __init__(self, ctx: Ctx, dtype: torch.dtype) -> None:
        self.angles = ctx.positions[:, None, None].to(dtype) * 0.5

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys, turned."""
        return self.turn(q), self.turn(k)

    def turn(self, x: Tensor) -> Tensor:
        """Return x turned; the last channel of an odd width stays.

        Shapes: x (N, H, K) -> (N, H, K)
        """
        even = x.shape[2] // 2 * 2
        a, b, rest = x[..., 0:even:2], x[..., 1:even:2], x[..., even:]
        cos, sin = self.angles.cos(), self.angles.sin()
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], 3).flatten(2)
        return torch.cat([turned, rest], 2)


class Alone(Tables):
    """Adds so little to the scores of all other tokens that each token sees itself alone."""

    def __init__(self, ctx: Ctx, dtype: torch.dtype, heads: int) -> None:
        eyes = [torch.eye(rows.shape[1], dtype=dtype, device=rows.device) for rows in ctx.rows()]
        self.added = [((eye - 1) * 1e9).expand(1, heads, *eye.shape) for eye in eyes]

    def biases(self, layer: int) -> list[Tensor]:
        """Return -1e9 off the diagonal.

        Shapes: -> (1, H, T, T) for each run
        """
        return self.added


class AttentionBench(Bench):
    """An attention part; `tables` makes what its position prepared for a batch."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__(part)
        self.tables: Callable[[Ctx, torch.dtype], Tables] | None = None

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return what the part makes of x."""
        ctx.pos["none"] = Tables() if self.tables is None else self.tables(ctx, x.dtype)
        return super().forward(x, ctx)


class Mix(nn.Module):
    """Plain attention with weights of its own, drawn once: the company of placements and positions.

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        draws = torch.Generator().manual_seed(20)
        maps = torch.randn(3, width, width, generator=draws) / width**0.5
        self.maps = nn.Parameter(maps, requires_grad=False)

    def forward(self, x: Tensor, ctx: Ctx, tables: Tables | None = None) -> Tensor:
        """Return the mixed tokens."""
        q, k, v = ((x @ w).unflatten(1, (self.heads, -1)) for w in self.maps)
        tables = tables or Tables()
        q, k = tables.rotate(q, k)
        return by_sequence(attend, q, k, v, ctx, biases=tables.biases(0)).flatten(1)  # (N, D)


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return softmax attention, with a weight of exactly 0 for what is not seen.

    Shapes: q, k, v (B, H, T, K), seen (B, 1, 1, T), bias (1 or B, H, T, T) -> (B, H, T, K)
    """
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5  # (B, H, T, T)
    scores = scores if bias is None else scores + bias
    if seen is not None:
        scores = scores.masked_fill(~seen, float("-inf"))
    return torch.matmul(scores.softmax(3).to(v.dtype), v)


class PlacementBench(Bench):
    """A placement around `Mix`."""

    def __init__(self, part: nn.Module, width: int, heads: int) -> None:
        super().__init__(part)
        self.mix = Mix(width, heads)

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the residual stream after the placement, its streams made one again."""
        part = cast(Placement, self.part)
        return part.leave(part(part.enter(x, ctx), self.mix, ctx), lambda y, _: y, ctx)


class PositionBench(Bench):
    """A position part below `Mix`, which asks it to turn queries and keys."""

    def __init__(self, part: nn.Module, width: int, heads: int) -> None:
        super().__init__(part)
        self.mix = Mix(width, heads)

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return the tokens with their positions, mixed."""
        position = cast(Position, self.part)
        x = position.embed(x, ctx)
        return torch.add(x, self.mix(x, ctx, position.prepare(ctx)))
