"""What a property is tried on: cases from the smallest up, so that the first to fail is the least.

`Broken` is what a property raises when a part does not have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

LADDER: tuple[tuple[int, ...], ...] = ((1,), (2,), (1, 1), (2, 1), (3, 0, 2), (4, 4), (7, 1, 0, 5))


class Broken(Exception):
    """A part does not have a property; the message says what came out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input: sequences of these lengths at these sizes; `variant` is what else is varied."""

    lengths: tuple[int, ...] = (3, 0, 2)
    width: int = 4
    heads: int = 2
    d_ff: int = 8
    dtype: torch.dtype = torch.float64
    train: bool = False
    variant: str = ""

    def __str__(self) -> str:
        sizes = f"lengths={list(self.lengths)} d_model={self.width} n_heads={self.heads}"
        mode = "train" if self.train else "eval"
        more = f", {self.variant}" if self.variant else ""
        return f"{sizes} {str(self.dtype).removeprefix('torch.')} {mode}{more}"


Cases = tuple[Case, ...]


def ladder(lengths: Sequence[tuple[int, ...]] = LADDER, case: Case | None = None) -> Cases:
    """Return a case for each tuple of lengths, alike in everything else."""
    return tuple(replace(case or Case(), lengths=item) for item in lengths)


def in_both_modes(cases: Cases) -> Cases:
    """Return every case in eval, then in training."""
    return tuple(replace(case, train=mode) for case in cases for mode in (False, True))


def varied(cases: Cases, *variants: str) -> Cases:
    """Return every case once with each variant."""
    return tuple(replace(case, variant=variant) for case in cases for variant in variants)


def distance(a: Tensor, b: Tensor) -> float:
    """Return the largest difference between two tensors, infinite where one alone is not a number.

    Errors: Broken for other shapes.
    """
    if a.shape != b.shape:
        raise Broken(f"the shape is {tuple(a.shape)}, and should be {tuple(b.shape)}")
    if torch.equal(a, b) or not a.numel():
        return 0.0
    a, b = a.detach().double(), b.detach().double()
    off = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
    return float(off.nan_to_num(nan=torch.inf).max())


def near(a: Tensor, b: Tensor, limit: float, what: str) -> float:
    """Return how far apart two tensors are.

    Errors: Broken when that is more than `limit`.
    """
    off = distance(a, b)
    if off > limit:
        allowed = "must be bit-equal" if limit == 0 else f"{limit:.0e} is allowed"
        raise Broken(f"{what}: off by {off:.2g}; {allowed}")
    return off


def finite(t: Tensor, what: str) -> None:
    """Refuse a tensor with NaN or infinity in it.

    Errors: Broken.
    """
    if not bool(t.isfinite().all()):
        raise Broken(f"{what} is not finite: {int((~t.isfinite()).sum())} of {t.numel()} numbers")


def backward(loss: Tensor) -> None:
    """Go backward from a loss, if anything leads there."""
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]


def pieces(x: Tensor, lengths: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the tokens of each sequence.

    Shapes: x (N, ...) -> (T, ...) each
    """
    return torch.split(x, list(lengths))


def require(condition: bool, words: str) -> None:
    """Refuse a part for a reason in words.

    Errors: Broken.
    """
    if not condition:
        raise Broken(words)
