"""What a task is: batches that are pure functions of (seed, split, k), and how they are scored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from encoderkit.nn.init import generator


@dataclass(slots=True)
class Batch:
    """B packed sequences with M scored positions; no `index` means that every token is scored.

    Shapes: tokens (N,), lengths B numbers that sum to N, index (M,) into tokens, targets (M,).
    """

    tokens: Tensor
    lengths: list[int]
    index: Tensor | None
    targets: Tensor

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        index = None if self.index is None else self.index.to(device)
        return Batch(self.tokens.to(device), self.lengths, index, self.targets.to(device))

    def split(self, parts: int) -> list[Batch]:
        """Return the batch as at most `parts` batches of whole sequences, in order."""
        starts = [0, *accumulate(self.lengths)]
        bounds = [len(self.lengths) * i // parts for i in range(parts + 1)]
        pairs = [(lo, hi) for lo, hi in zip(bounds, bounds[1:], strict=False) if lo < hi]
        return [self] if parts == 1 else [self._rows(lo, hi, starts) for lo, hi in pairs]

    def _rows(self, low: int, high: int, starts: list[int]) -> Batch:
        begin, end = starts[low], starts[high]
        tokens, lengths = self.tokens[begin:end], self.lengths[low:high]
        if self.index is None:
            return Batch(tokens, lengths, None, self.targets[begin:end])
        inside = (self.index >= begin) & (self.index < end)
        return Batch(tokens, lengths, self.index[inside] - begin, self.targets[inside])


class Task:
    """The base of every task; built as `cls(opts, seed)` with the data seed.

    A subclass sets what is declared here: the sizes of the model's two ends, the loss of a model
    that has learnt nothing, other losses to compare with, and a hash of the data.
    """

    metric: ClassVar[str] = "loss"
    lower_is_better: ClassVar[bool] = True

    vocab: int
    outputs: int
    trivial_loss: float
    baselines: dict[str, float]
    data_hash: str

    def __init__(self, opts: Any, seed: int) -> None:
        self.opts = opts
        self.seed = seed

    def draws(self, split: str, k: int) -> Generator:
        """Return a fresh generator keyed by (seed, split, k); splits but `train` know no seed."""
        return generator(self.seed if split == "train" else 0, split, k)

    def batch(self, k: int, size: int) -> Batch:
        """Return training batch k, of `size` sequences: a pure function of (seed, k, size)."""
        raise NotImplementedError

    def evaluation(self) -> Iterator[Batch]:
        """Yield the batches of the evaluation, the same for every run and seed."""
        raise NotImplementedError

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss summed over the scored positions, in nats.

        Shapes: logits (M, outputs) -> ()
        """
        return cross_entropy(logits, batch.targets, reduction="sum")

    def scores(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return sums over the scored positions; divided by M they are means. `loss` is required.

        Shapes: logits (M, outputs) -> (), by name
        """
        right = logits.argmax(-1) == batch.targets
        return {"loss": self.loss(logits, batch), "accuracy": right.sum()}


def content_hash(*chunks: bytes) -> str:
    """Return the first 12 hex digits of the SHA-256 of the chunks, joined."""
    return hashlib.sha256(b"".join(chunks)).hexdigest()[:12]
