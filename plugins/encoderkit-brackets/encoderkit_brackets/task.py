"""The task of brackets itself: imported when `task=brackets` is chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Generator

from encoderkit.data import Batch, Task, content_hash
from encoderkit_brackets import BracketsOptions

_EVAL_BATCH = 64  # sequences; a fixed number, so that an evaluation's sums keep their order


class Brackets(Task):
    """Name the sort of opener that each closer matches; all closers look alike (arXiv 2105.11115).

    Of S sorts of openers, token i is the i-th and S is the closer: 0 1 2 1 2 2 has 1 0... The
    sorts are drawn independently, so a model that has learnt nothing is right at 1/S, and its loss
    is ln S nats exactly. Sequences have from 1 to `pairs` pairs; only closers are scored.
    """

    metric = "accuracy"
    lower_is_better = False
    opts: BracketsOptions

    def __init__(self, opts: BracketsOptions, seed: int) -> None:
        super().__init__(opts, seed)
        self.vocab, self.outputs = opts.sorts + 1, opts.sorts
        self.trivial_loss = math.log(opts.sorts)
        self.baselines = {"uniform": self.trivial_loss}
        starts = range(0, opts.eval_sequences, _EVAL_BATCH)
        sizes = [min(_EVAL_BATCH, opts.eval_sequences - start) for start in starts]
        self._held_out = [self._draw(n, self.draws("eval", k)) for k, n in enumerate(sizes)]
        tokens = [batch.tokens.numpy().astype("<i8").tobytes() for batch in self._held_out]
        self.data_hash = content_hash(*tokens)

    def batch(self, k: int, size: int) -> Batch:
        """Return training batch k of the endless stream."""
        return self._draw(size, self.draws("train", k))

    def evaluation(self) -> Iterator[Batch]:
        """Yield the evaluation's sequences, drawn once with keys of their own."""
        return iter(self._held_out)

    def _draw(self, size: int, draws: Generator) -> Batch:
        """Return `size` sequences of brackets.

        Shapes: tokens (N,), index and targets (M,), M = N / 2
        """
        opts = self.opts
        pairs = (torch.randint(opts.pairs, (size,), generator=draws) + 1).tolist()
        total = 2 * sum(pairs)
        coins = torch.randint(2, (total,), generator=draws).tolist()
        sorts = torch.randint(opts.sorts, (total,), generator=draws).tolist()
        tokens: list[int] = []
        index: list[int] = []
        targets: list[int] = []
        for count in pairs:
            end = len(tokens) + 2 * count
            unmatched: list[int] = []
            while (at := len(tokens)) < end:
                full = len(unmatched) == end - at  # there is room for closers only
                if not full and (coins[at] or not unmatched):
                    unmatched.append(sorts[at])
                    tokens.append(sorts[at])
                else:
                    tokens.append(opts.sorts)
                    index.append(at)
                    targets.append(unmatched.pop())
        lengths = [2 * count for count in pairs]
        return Batch(torch.tensor(tokens), lengths, torch.tensor(index), torch.tensor(targets))
