"""Hyper-connections have every property that encoderkit asks of a placement."""

from __future__ import annotations

import torch
from torch import Tensor

from encoderkit.testing import conformance, make_ctx


def written_out(bench, x: Tensor, lengths: list[int]) -> Tensor:
    """Follow the equations of arXiv 2409.19606 token by token, stream by stream."""
    part = bench.part
    n = len(part.static.beta)
    read = [[part.static.alpha[i, 0] for i in range(n)] for _ in x]
    kept = [[[part.static.alpha[i, 1 + j] for j in range(n)] for i in range(n)] for _ in x]
    written = [[part.static.beta[j] for j in range(n)] for _ in x]
    if part.dynamic is not None:
        more = part.dynamic
        for t, token in enumerate(x):
            seen = normal(token)
            for i in range(n):
                read[t][i] = read[t][i] + more.alpha_scale * turn(seen, more.alpha[:, 0])
                for j in range(n):
                    by = more.alpha_scale * turn(seen, more.alpha[:, 1 + j])
                    kept[t][i][j] = kept[t][i][j] + by
                written[t][i] = written[t][i] + more.beta_scale * turn(seen, more.beta[:, 0])
    # All streams are x at first.
    heard = [normal(sum(read[t][i] * token for i in range(n))) for t, token in enumerate(x)]
    told = bench.mix(torch.stack(heard), make_ctx(lengths)) if len(x) else x
    after = []
    for t, token in enumerate(x):
        streams = [
            sum(kept[t][i][j] * token for i in range(n)) + written[t][j] * told[t] for j in range(n)
        ]
        after.append(sum(streams))
    return torch.stack(after) if after else x


def normal(token: Tensor) -> Tensor:
    """Return a token, centred and scaled; the kit puts this norm where a norm is asked for."""
    centred = token - token.sum() / len(token)
    return centred / (centred.square().sum() / len(token) + 1e-5).sqrt()


def turn(token: Tensor, column: Tensor) -> Tensor:
    return torch.tanh(sum(a * b for a, b in zip(token, column, strict=True)))


TestStatic = conformance("placement=hyper", "placement.streams=3", reference=written_out)
TestDynamic = conformance("placement=hyper_dynamic", reference=written_out)
