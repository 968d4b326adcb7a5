"""The attention-free mixer has every property that encoderkit asks of an attention."""

from __future__ import annotations

import torch
from torch import Tensor

from encoderkit.testing import conformance


def written_out(part, x: Tensor, lengths: list[int]) -> Tensor:
    """Follow the equation of arXiv 2105.14103, place by place and channel by channel."""
    found = [x[:0]]
    for tokens in x.split(list(lengths)):
        q, k, v = (
            [project(layer, token) for token in tokens] for layer in (part.q, part.k, part.v)
        )
        for t, gate in enumerate(q):
            channels = []
            for c in range(x.shape[1]):
                head = c * part.heads // x.shape[1]
                weights = [torch.exp(k[s][c] + bias(part, head, s - t)) for s in range(len(tokens))]
                mean = sum(w * v[s][c] for s, w in enumerate(weights)) / sum(weights)
                channels.append(mean / (1 + torch.exp(-gate[c])))
            found.append(project(part.out, torch.stack(channels))[None])
    return torch.cat(found)


def project(layer, token: Tensor) -> Tensor:
    y = torch.stack([(row * token).sum() for row in layer.weight])
    return y if layer.bias is None else y + layer.bias


def bias(part, head: int, apart: int) -> Tensor | float:
    return part.w[head, apart + part.reach] if abs(apart) <= part.reach else 0.0


TestConformance = conformance("attention=aft", "attention.reach=2", reference=written_out)
TestWithBias = conformance("attention=aft", "attention.bias=true", reference=written_out)
