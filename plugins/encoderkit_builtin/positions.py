"""Positions: how a stack learns the order of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from encoderkit.nn import ConfigError, Ctx, Fault, InputError, Position, Site, Tables, embedding
from encoderkit_builtin.catalogue import LearnedOptions, RoPEOptions


class NoPosition(Position):
    """Says nothing: the stack then maps a permuted sequence to the permuted result."""


class Sinusoidal(Position):
    """Adds fixed sines and cosines (arXiv 1706.03762).

    x[2i] + sin(p / 10000^(2i/D)), x[2i+1] + cos(p / 10000^(2i/D)); an odd D ends in a sine

    Shapes: x (N, D) -> (N, D)
    """

    def embed(self, x: Tensor, ctx: Ctx) -> Tensor:
        """Return x with its positions added."""
        d = x.shape[1]
        angles = turns(ctx.positions, d, 10000.0)  # (N, ceil(D/2))
        table = torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, :d]  # (N, D)
        return x + table.to(x.dtype)


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

    Channels i and i + K/2 turn by p theta^(-2i/K), so a score depends on the distance alone.
    Angles, cosines and sines are float32 in a model of any dtype.

    Shapes: q, k (N, H, K) -> (N, H, K)

    Errors: ConfigError for an odd head width K.
    """

    def __init__(self, opts: RoPEOptions, site: Site) -> None:
        super().__init__()
        self.theta = opts.theta
        self.width = site.d_model // site.n_heads
        if self.width % 2:
            problem = f"position=rope needs an even head width; {site.d_model} / {site.n_heads} "
            problem += f"is {self.width}."
            hint = f"Try model.d_model={2 * site.d_model}, or another n_heads or position."
            raise ConfigError([Fault(f"model.n_heads={site.n_heads}", problem, hint)])

    def prepare(self, ctx: Ctx) -> Tables:
        """Return the cosines and sines of this batch."""
        angles = turns(ctx.positions, self.width, self.theta)[:, None]  # (N, 1, K/2)
        return Turn(angles.cos(), angles.sin())


@dataclass(slots=True)
class Turn(Tables):
    """Cosines and sines.

    Shapes: cos and sin (N, 1, K/2)
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
        a, b = x.chunk(2, 2)  # (N, H, K/2)
        turned = [a * self.cos - b * self.sin, b * self.cos + a * self.sin]
        return torch.cat(turned, 2).to(x.dtype)  # (N, H, K)


def turns(positions: Tensor, width: int, theta: float) -> Tensor:
    """Return the angles p theta^(-2i/width) in float32.

    Shapes: positions (N) -> (N, ceil(width/2))
    """
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / -width
    return positions[:, None].float() * theta**exponents  # (N, ceil(width/2))
