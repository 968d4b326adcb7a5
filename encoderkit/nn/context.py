"""What a batch is: built once per forward at the stack's door, read by every part."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor

from encoderkit.api import Layout
from encoderkit.errors import PluginError


def key(seed: int, *words: str | int) -> int:
    """Return the 63-bit number that stands for (seed, words), the same on every machine."""
    text = "\x1f".join(str(word) for word in (seed, *words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@contextmanager
def seeded(number: int, device: torch.device) -> Iterator[None]:
    """Start torch's global generators of the CPU and `device` at `number`, and restore them."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    states = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(number)
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


class Out:
    """Collects what parts hand out beside their result; make a new one for each forward."""

    def __init__(self) -> None:
        self.losses: dict[str, Tensor] = {}
        self.records: dict[str, list[Tensor]] = {}

    def loss(self, name: str, value: Tensor) -> None:
        """Add a scalar to the loss `name`; losses of one name add up over the layers.

        Errors: PluginError for anything but a tensor without dimensions.
        """
        if not isinstance(value, Tensor) or value.dim():
            what = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise PluginError(f"ctx.out.loss({name!r}): must be a scalar tensor; it is {what}.")
        self.losses[name] = self.losses[name] + value if name in self.losses else value

    def record(self, name: str, value: Tensor) -> None:
        """Append a tensor to the record `name`."""
        self.records.setdefault(name, []).append(value)

    def each(self, name: str, values: Tensor) -> None:
        """Append every entry along the first dimension to the record `name`."""
        self.records.setdefault(name, []).extend(values.unbind())


class Silent(Out):
    """Stands in where nobody listens."""

    def loss(self, name: str, value: Tensor) -> None:
        """Do nothing."""

    def record(self, name: str, value: Tensor) -> None:
        """Do nothing."""

    def each(self, name: str, values: Tensor) -> None:
        """Do nothing."""


SILENT = Silent()


@dataclass(slots=True)
class Ctx:
    """One batch, as every part sees it.

    Layouts: packed, x is (N, D) with only real tokens in it; dense, N = B S and padding is in it.
    `runs` holds (count, length) of neighbouring sequences of one length, packed only; `max_len` is
    S when dense; `n_positions` is one more than the largest position; `counted` says that positions
    count from 0 in every sequence, alike.

    Shapes: offsets (B+1), positions (N), valid (B, S), True = a real token, dense only.
    """

    layout: Layout
    shape: tuple[int, int]
    lengths: list[int] | None
    offsets: Tensor
    max_len: int
    positions: Tensor
    n_positions: int
    valid: Tensor | None = None
    runs: list[tuple[int, int]] = field(default_factory=list)
    seed: int = 0
    step: int | None = None
    counted: bool = True
    pos: dict[str, Any] = field(default_factory=dict)
    out: Out = SILENT

    def keys(self) -> Tensor | None:
        """Return which keys a query may see, or None where it may see all; dense only.

        In a row without a real token all keys count: a softmax over nothing would be NaN.

        Shapes: -> (B, 1, 1, S)
        """
        if self.valid is None:
            return None
        seen = self.valid | ~self.valid.any(1, keepdim=True)
        return seen[:, None, None, :]  # (B, 1, 1, S)

    def rows(self) -> list[Tensor]:
        """Return the positions of each run's sequences, one row where they are all alike.

        Dense, the whole batch is one run.

        Shapes: -> (1 or B, T) for each run
        """
        if self.layout == "dense":
            table = self.positions.view(self.shape)  # (B, S)
            return [table[:1] if self.counted else table]
        sizes = [count * length for count, length in self.runs]
        tables = torch.split(self.positions, sizes)
        shaped = [t.view(run) for t, run in zip(tables, self.runs, strict=True)]  # (B, T) each
        return [t[:1] if self.counted else t for t in shaped]


def packed(lengths: list[int], shape: tuple[int, int], device: torch.device) -> Ctx:
    """Return the context of packed sequences; positions count from 0 in each of them."""
    offsets = [0, *accumulate(lengths)]
    n, max_len = offsets[-1], max(lengths, default=0)
    at = torch.tensor(offsets, dtype=torch.int64, device=device)  # (B+1)
    sizes = at.diff()  # (B)
    starts = torch.repeat_interleave(at[:-1], sizes, output_size=n)  # (N)
    return Ctx(
        layout="packed",
        shape=shape,
        lengths=lengths,
        offsets=at,
        max_len=max_len,
        positions=torch.arange(n, device=device) - starts,
        n_positions=max_len,
        runs=[(sum(1 for _ in run), length) for length, run in groupby(lengths)],
    )


def dense(valid: Tensor | None, shape: tuple[int, int], device: torch.device) -> Ctx:
    """Return the context of a dense batch; positions count the real tokens of each row."""
    b, s = shape
    if valid is None:
        positions = torch.arange(s, device=device).expand(b, s)
    else:
        positions = (valid.cumsum(1) - 1).clamp(min=0)  # (B, S)
    return Ctx(
        layout="dense",
        shape=shape,
        lengths=None,
        offsets=torch.arange(b + 1, device=device) * s,
        max_len=s,
        positions=positions.reshape(b * s),  # (N)
        n_positions=s,
        counted=valid is None,
        valid=valid,
        out=SILENT,  # torch.compile cannot follow a dataclass to this default
    )
