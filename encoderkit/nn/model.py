"""A stack with token embeddings below it and a linear head above it: what a task trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from encoderkit.nn.base import embedding
from encoderkit.nn.context import Out
from encoderkit.nn.stack import EncoderStack


class EncoderModel(EncoderStack):
    """Scores tokens: head(stack(embed(tokens)))."""

    def __init__(self, vocab: int, outputs: int, *, d_model: int, **stack: Any) -> None:
        super().__init__(d_model=d_model, **stack)
        self.embed = embedding(vocab, d_model)
        self.head = nn.Linear(d_model, outputs)

    def logits(
        self,
        tokens: Tensor,
        lengths: Sequence[int] | Tensor,
        index: Tensor | None = None,
        *,
        step: int | None = None,
        out: Out | None = None,
    ) -> Tensor:
        """Return the scores at the positions `index` of N, or at all of them.

        Shapes: tokens (N), lengths (B), index (M) -> (M, outputs)
        """
        x = self(self.embed(tokens), lengths=lengths, step=step, out=out)  # (N, D)
        x = x if index is None else x.index_select(0, index)  # (M, D)
        return F.linear(x, self.head.weight, self.head.bias)  # (M, outputs)
