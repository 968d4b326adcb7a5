"""Positions: how a stack learns the order of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from encoderkit.nn import ConfigError, Ctx, Fault, InputError, Position, Site, Tables, embedding
from encoderkit_builtin.catalogue import LearnedOptions, RoPEOptions, SinusoidalOptions


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
