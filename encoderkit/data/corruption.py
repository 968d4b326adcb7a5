"""The corruption of masked language modelling."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def corrupt(
    tokens: Tensor, rate: float, symbols: int, blank: int, draws: Generator
) -> tuple[Tensor, Tensor]:
    """Hide a share `rate` of each row's tokens, and return the rows with where they were changed.

    Of the hidden tokens 80 % become `blank`, 10 % a random symbol below `symbols`, and 10 % stay
    what they are (arXiv 1810.04805). The number in a row is exact, and at least one.

    Shapes: tokens (B, T) -> (B, T), (M,) positions in the flattened rows, ascending
    """
    rows, length = tokens.shape
    hidden = max(1, round(rate * length))
    chosen = torch.rand(rows, length, generator=draws).topk(hidden).indices.sort().values  # (B, m)
    index = (chosen + length * torch.arange(rows)[:, None]).flatten()  # (M,)
    fate = torch.rand(len(index), generator=draws)
    other = torch.randint(symbols, (len(index),), generator=draws)
    flat = tokens.flatten()  # (B*T,)
    changed = torch.where(fate < 0.8, blank, torch.where(fate < 0.9, other, flat[index]))
    return flat.index_copy(0, index, changed).view(rows, length), index  # (B, T), (M,)
