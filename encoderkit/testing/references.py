"""What attention is, once more: plain loops in float64, nothing in common with any part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Vectors = list[list[Tensor]]  # for each token, one vector a head


def softmax_attention(
    module: Any,
    x: Tensor,
    lengths: Sequence[int],
    *,
    window: int | None = None,
    softcap: float | None = None,
    biases: Sequence[Tensor] | None = None,
    qk_norm: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return attention, given the module's projections: one sequence, head and query at a time.

    out_i = sum_j exp(s_ij) v_j / sum_j exp(s_ij), s_ij = c tanh(q_i k_j / sqrt(K) / c) + bias_ij,
    over the j that are at most `window` places from i. With fewer heads of keys and values, query
    head h has that of its group; `biases` has one (H, T, T) for each sequence; `qk_norm` normalises
    one vector.

    Shapes: x (N, D) -> (N, D)
    """
    width = x.shape[1] // module.heads
    q, k, v = (_heads(layer, x, width) for layer in (module.q, module.k, module.v))
    if qk_norm is not None:
        q, k = ([[qk_norm(head) for head in token] for token in t] for t in (q, k))
    rows: list[Tensor] = []
    start = 0
    for place, length in enumerate(lengths):
        for i in range(length):
            seen = [j for j in range(length) if window is None or abs(i - j) <= window]
            heads = []
            for h in range(module.heads):
                group = h * len(k[0]) // module.heads
                keys = [k[start + j][group] for j in seen]
                scores = [_score(q[start + i][h], key, softcap) for key in keys]
                if biases is not None:
                    added = [biases[place][h, i, j] for j in seen]
                    scores = [s + b for s, b in zip(scores, added, strict=True)]
                heads.append(_mean(scores, [v[start + j][group] for j in seen]))
            rows.append(torch.cat(heads))
        start += length
    mixed = torch.stack(rows) if rows else x[:0]  # (N, D)
    return _linear(module.out, mixed)


def _score(q: Tensor, key: Tensor, softcap: float | None) -> Tensor:
    """Return the score of one query and one key.

    Shapes: q and key (K) -> ()
    """
    score = torch.div((q * key).sum(), q.shape[0] ** 0.5)
    if softcap is None:
        return score
    e = torch.exp(-2 * (score / softcap).abs())
    return torch.mul(score.sign() * (1 - e) / (1 + e), softcap)


def _mean(scores: list[Tensor], values: list[Tensor]) -> Tensor:
    """Return the mean of the values for one query of one head.

    Shapes: each score () and value (K) -> (K)
    """
    top = max(float(score.detach()) for score in scores)
    weights = [(score - top).exp() for score in scores]
    total = torch.stack(weights).sum()
    return torch.stack([w * value for w, value in zip(weights, values, strict=True)]).sum(0) / total


def _heads(layer: Any, x: Tensor, width: int) -> Vectors:
    """Return what a linear map makes of each token, cut into heads."""
    return [list(row.split(width)) for row in _linear(layer, x)]


def _linear(layer: Any, x: Tensor) -> Tensor:
    y: Tensor = (x[:, None, :] * layer.weight[None]).sum(2)  # (N, out)
    return y if layer.bias is None else torch.add(y, layer.bias)
