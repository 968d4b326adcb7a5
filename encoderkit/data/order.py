"""In what order the rows of a finite data set are visited."""

from __future__ import annotations

import torch
from torch import Tensor

from encoderkit.nn.init import generator


def epoch_rows(seed: int, k: int, size: int, count: int) -> Tensor:
    """Return the rows of batch k when all `count` rows are visited once an epoch.

    Each epoch has an order of its own, keyed by (seed, epoch); a batch may end one and begin the
    next. It is a pure function of its arguments: no order is carried from batch to batch.

    Shapes: -> (size,)
    """
    first, last = k * size, (k + 1) * size
    rows = []
    for epoch in range(first // count, (last - 1) // count + 1):
        order = torch.randperm(count, generator=generator(seed, "order", epoch))
        rows.append(order[max(first - epoch * count, 0) : last - epoch * count])
    return torch.cat(rows)
