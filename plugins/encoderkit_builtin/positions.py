"""Positions: how a stack learns the order of tokens."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from encoderkit.nn import ConfigError, Ctx, Fault, InputError, Position, Site, Tables, embedding
from encoderkit_builtin.catalogue_positions import (
    LearnedOptions,
    RoPEOptions,
    SinusoidalOptions,
    T5Options,
)


class NoPosition(Position):
    """Says nothing: the stack then maps a permuted sequence to the permuted result."""


class Sinusoidal(Position):
    """Adds fixed sines and cosines (arXiv 1706.03762).

    x[2i] + sin(p / 10000^(2i/D)), x[2i+1] + cos(p / 10000^(2i/D)); an odd D ends in a sine. With
    layout=half the same columns stand in another order: all sines, then all cosines.

    Shapes: x (N, D) -> (N, D)
    """

    def __init__(self, opts: SinusoidalOptions, site: Site) -> None:
        super().__init__()
        self.halves = opts.layout == "half"

    def embed(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return x with its positions added."""
        d = x.shape[1]
        angles = turns(ctx.positions, d, 10000.0)  # (N, ceil(D/2))
        columns = torch.stack([angles.sin(), angles.cos()], 1 if self.halves else 2)
        return x + columns.flatten(1)[:, :d].to(x.dtype)  # (N, D)


class Learned(Position):
    """Adds a learned vector for each position, `max_len` of them (arXiv 1810.04805).

    x + table[p]

    Shapes: x (N, D) -> (N, D)

    Errors: InputError for a longer sequence.
    """

    def __init__(self, opts: LearnedOptions, site: Site) -> None:
        super().__init__()
        self.max_len = opts.max_len
        self.table = embedding(opts.max_len, site.d_model)

    def embed(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return x with its positions added."""
        if ctx.n_positions > self.max_len:
            raise InputError(
                f"position=learned: this batch has {ctx.n_positions} positions, and there are "
                f"{self.max_len}. Try position.max_len={ctx.n_positions}."
            )
        y: Tensor = x + self.table(ctx.positions)
        return y


class RoPE(Position):
    """Turns pairs of query and key channels by their position (arXiv 2104.09864).

    Of the first W channels of a head, i and i + W/2 turn by p theta^(-2i/W), with
    layout=interleaved 2i and 2i + 1, so a score depends on the distance alone; W is the head width
    K unless told, and channels from W on stay. Angles, cosines and sines are float32 in a model of
    any dtype.

    Shapes: q, k (N, H, K) -> (N, H, K)

    Errors: ConfigError for an odd W, or one above K.
    """

    def __init__(self, opts: RoPEOptions, site: Site) -> None:
        super().__init__()
        self.theta = opts.theta
        self.turn = {"half": Turn, "interleaved": TurnNeighbours}[opts.layout]
        head = site.d_model // site.n_heads
        self.width = head if opts.width is None else opts.width
        if opts.width is not None and (opts.width > head or opts.width % 2):
            problem = f"must be even, and at most the head width: {site.d_model} / "
            problem += f"{site.n_heads} is {head}."
            hint = f"Try position.width={head // 2 // 2 * 2 or 2}, or null for all channels."
            raise ConfigError([Fault(f"position.width={opts.width}", problem, hint)])
        if self.width % 2:
            problem = f"position=rope needs an even head width; {site.d_model} / {site.n_heads} "
            problem += f"is {self.width}."
            hint = f"Try model.d_model={2 * site.d_model}, or another n_heads or position."
            raise ConfigError([Fault(f"model.n_heads={site.n_heads}", problem, hint)])

    def prepare(self, ctx: Ctx) -> Tables:
        """Return the cosines and sines of this batch."""
        angles = turns(ctx.positions, self.width, self.theta)[:, None]  # (N, 1, W/2)
        return self.turn(angles.cos(), angles.sin())


@dataclass(slots=True)
class Turn(Tables):
    """Cosines and sines, for pairs (i, i + W/2).

    Shapes: cos and sin (N, 1, W/2)
    """

    cos: Tensor
    sin: Tensor

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys, turned."""
        return self.turn(q), self.turn(k)

    def turn(self, x: Tensor) -> Tensor:
        """Return x turned, in its own dtype.

        Shapes: x (N, H, K) -> (N, H, K)
        """
        half = self.cos.shape[2]
        sizes = [half, half, x.shape[2] - 2 * half]
        a, b, rest = torch.split(x, sizes, 2)  # (N, H, W/2) twice
        turned = [a * self.cos - b * self.sin, b * self.cos + a * self.sin]
        return torch.cat([*turned, rest], 2).to(x.dtype)  # (N, H, K)


class TurnNeighbours(Turn):
    """Cosines and sines, for pairs (2i, 2i + 1).

    Shapes: cos and sin (N, 1, W/2)
    """

    __slots__ = ()

    def turn(self, x: Tensor) -> Tensor:
        """Return x turned, in its own dtype.

        Shapes: x (N, H, K) -> (N, H, K)
        """
        width = 2 * self.cos.shape[2]
        a, b, rest = x[..., 0:width:2], x[..., 1:width:2], x[..., width:]  # (N, H, W/2) twice
        turned = torch.stack([a * self.cos - b * self.sin, b * self.cos + a * self.sin], 3)
        return torch.cat([turned.flatten(2), rest], 2).to(x.dtype)  # (N, H, K)


def turns(positions: Tensor, width: int, theta: float) -> Tensor:
    """Return the angles p theta^(-2i/width) in float32.

    Shapes: positions (N) -> (N, ceil(width/2))
    """
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / -width
    return positions[:, None].float() * theta**exponents  # (N, ceil(width/2))


class ALiBi(Position):
    """Takes from a score what grows with the distance, at a rate of each head's own.

    -m_h |i - j|, symmetric, as an encoder sees both sides (arXiv 2108.12409 has one); so alone it
    cannot tell a sequence from its reverse. Slopes and biases are float32 in a model of any dtype.

    Shapes: -> (1 or B, H, T, T) for each run
    """

    def __init__(self, opts: Any, site: Site) -> None:
        super().__init__()
        self.slopes = slopes(site.n_heads)

    def prepare(self, ctx: Ctx) -> Tables:
        """Return the biases of this batch, the same for all layers."""
        rates = torch.tensor(self.slopes, device=ctx.positions.device)[:, None, None]  # (H, 1, 1)
        return Added([-rates * apart(rows).abs()[:, None] for rows in ctx.rows()])


def slopes(heads: int) -> list[float]:
    """Return how steeply each head's score falls, as published.

    2^(-8 h / H), h from 1 to H, for a power of two H; for another, those of the next smaller power
    of two, then every other one of the next larger.
    """
    power = 1 << (heads.bit_length() - 1)
    found = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2.0 ** (-4 * h / power) for h in range(1, 2 * power, 2)]
    return (found + between)[:heads]


@dataclass(slots=True)
class Added(Tables):
    """Biases that all layers share.

    Shapes: each of held (1 or B, H, T, T)
    """

    held: list[Tensor]

    def biases(self, layer: int) -> list[Tensor]:
        """Return them."""
        return self.held


class T5(Position):
    """Adds a learned number for each head and bucket of j - i to a score (arXiv 1910.10683).

    Half of the buckets are for keys after the query. Of a half, n, the first e = n/2 hold one
    distance d each, the others grow: e + floor((n - e) ln(d / e) / ln(max_distance / e)), at most
    n - 1. With `shared` all layers read one table, else each has its own rows of it. Starts at
    N(0, 1/D), whatever the init part.

    Shapes: -> (1 or B, H, T, T) for each run

    Errors: ConfigError for an odd number of buckets, or a max_distance within the first e.
    """

    owns_init = True

    def __init__(self, opts: T5Options, site: Site) -> None:
        super().__init__()
        self.buckets = opts.buckets
        half = opts.buckets // 2
        if opts.buckets % 2:
            hint = f"Try position.buckets={opts.buckets + 1}."
            raise ConfigError([Fault(f"position.buckets={opts.buckets}", "must be even.", hint)])
        if opts.max_distance <= half // 2:
            where = f"position.max_distance={opts.max_distance}"
            problem = f"must be above {half // 2}: up to there each distance has its own bucket."
            raise ConfigError([Fault(where, problem, f"Try position.max_distance={4 * half}.")])
        self.edges = edges(half, opts.max_distance)
        tables = 1 if opts.shared else site.n_layers
        drawn = [
            torch.normal(0.0, site.d_model**-0.5, (opts.buckets, site.n_heads))
            for _ in range(tables)
        ]
        self.table = embedding(tables * opts.buckets, site.n_heads)
        self.table.weight = nn.Parameter(torch.cat(drawn))  # (L buckets, H)

    def prepare(self, ctx: Ctx) -> Tables:
        """Return the biases of this batch, or the buckets that each layer looks up for itself."""
        first = torch.tensor(self.edges, device=ctx.positions.device)
        found = []
        for rows in ctx.rows():
            away = apart(rows)  # (1 or B, T, T)
            bucket = torch.bucketize(away.abs(), first, right=True)  # (1 or B, T, T)
            found.append(bucket + (away > 0) * (self.buckets // 2))
        tables = torch.split(self.table.weight, self.buckets)
        held = Bucketed(found, list(tables))
        return Added(held.biases(0)) if len(tables) == 1 else held


def edges(buckets: int, max_distance: int) -> list[int]:
    """Return the least distance in each bucket but the first, of those for one direction.

    Whole numbers decide, (d / e)^m >= (max_distance / e)^k, where a rounded logarithm may not.
    """
    e = buckets // 2
    m = buckets - e
    wide = range(e, max_distance + 1)
    bounds = [max_distance**k * e ** (m - k) for k in range(1, m)]
    return [
        *range(1, e + 1),
        *(wide[bisect_left(wide, bound, key=lambda d: d**m)] for bound in bounds),
    ]


@dataclass(slots=True)
class Bucketed(Tables):
    """Buckets for each run, and a table for each layer.

    Shapes: each of buckets (1 or B, T, T), each of tables (buckets, H)
    """

    buckets: list[Tensor]
    tables: list[Tensor]

    def biases(self, layer: int) -> list[Tensor]:
        """Return what the layer's table holds for each bucket."""
        columns = self.tables[layer].t()  # (H, buckets)
        return [columns[:, bucket].transpose(0, 1) for bucket in self.buckets]


def apart(rows: Tensor) -> Tensor:
    """Return j - i for each query i and key j.

    Shapes: rows (1 or B, T) -> (1 or B, T, T)
    """
    return rows[:, None, :] - rows[:, :, None]  # (1 or B, T, T)
