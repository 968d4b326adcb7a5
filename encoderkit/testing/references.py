"""What attention is, once more: plain loops in float64, nothing in common with any part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def softmax_attention(module: Any, x: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return attention, given the module's projections: one sequence, head and query at a time.

    out_i = sum_j exp(q_i k_j / sqrt(K)) v_j / sum_j exp(q_i k_j / sqrt(K))

    Shapes: x (N, D) -> (N, D)
    """
    q, k, v = (_heads(layer, x, module.heads) for layer in (module.q, module.k, module.v))
    rows: list[Tensor] = []
    start = 0
    for length in lengths:
        seen = range(start, start + length)
        for i in seen:
            rows.append(
                torch.cat(
                    [
                        _look(q[i][h], [k[j][h] for j in seen], [v[j][h] for j in seen])
                        for h in range(module.heads)
                    ]
                )
            )
        start += length
    mixed = torch.stack(rows) if rows else x[:0]  # (N, D)
    return _linear(module.out, mixed)


def _look(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Return the mean of the values for one query of one head.

    Shapes: q (K), each key and value (K) -> (K)
    """
    scores = [(q * key).sum() / q.shape[0] ** 0.5 for key in keys]
    top = max(float(score.detach()) for score in scores)
    weights = [(score - top).exp() for score in scores]
    total = torch.stack(weights).sum()
    return torch.stack([w * value for w, value in zip(weights, values, strict=True)]).sum(0) / total


def _heads(layer: Any, x: Tensor, heads: int) -> list[list[Tensor]]:
    """Return what a linear map makes of each token, cut into heads."""
    return [list(row.split(row.shape[0] // heads)) for row in _linear(layer, x)]


def _linear(layer: Any, x: Tensor) -> Tensor:
    y: Tensor = (x[:, None, :] * layer.weight[None]).sum(2)  # (N, out)
    return y if layer.bias is None else torch.add(y, layer.bias)
