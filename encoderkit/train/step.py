"""The gradient of one optimizer step, gathered over its micro-batches."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from encoderkit.config.schema import TrainOptions
from encoderkit.data import Batch, Task
from encoderkit.nn.context import Out
from encoderkit.train.device import random_state, set_random_state


class PartLosses(Out):
    """Listens to the losses of parts, and lets their records go."""

    def record(self, name: str, value: Tensor) -> None:
        """Do nothing: a record would keep its tensors alive through the step."""

    def each(self, name: str, values: Tensor) -> None:
        """Do nothing."""


class Stepper:
    """Adds up gradients: loss = sum over the step's scored positions / their number M.

    A loss that a part hands out is taken for a mean over its tokens: each micro-batch counts by its
    share of the step's tokens.
    """

    def __init__(
        self, model: nn.Module, task: Task, options: TrainOptions, device: torch.device
    ) -> None:
        self.task, self.device = task, device
        self._logits: Callable[..., Tensor] = model.logits  # type: ignore[assignment]
        self._bf16 = options.precision == "bf16"
        self._clip = math.inf if options.clip is None else options.clip
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._terms: dict[str, Tensor] = {}

    def forward(self, batch: Batch, **context: Any) -> Tensor:
        """Return the logits of a batch, at least in float32.

        Shapes: -> (M, outputs)
        """
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16):
            logits = self._logits(batch.tokens, batch.lengths, batch.index, **context)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def add(self, part: Batch, whole: Batch, step: int) -> None:
        """Add the gradient of one micro-batch of the batch `whole`."""
        here, out = part.to(self.device), PartLosses()
        logits = self.forward(here, step=step, out=out)
        terms = {"loss": self.task.loss(logits, here) / max(len(whole.targets), 1)}
        share = len(part.tokens) / len(whole.tokens)
        terms |= {f"part/{name}": value * share for name, value in out.losses.items()}
        torch.autograd.backward(torch.stack(list(terms.values())).sum())
        for name, value in terms.items():
            past = self._terms.get(name)
            self._terms[name] = value.detach() if past is None else past + value.detach()

    def finish(self) -> dict[str, float]:
        """Clip the gradient, and return the step's losses and the norm that the gradient had."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        nn.utils.clip_grads_with_norm_(self._parameters, self._clip, norm)
        terms = self._terms | {"grad_norm": norm}
        self._terms = {}
        values = torch.stack([value.double() for value in terms.values()]).tolist()
        return dict(zip(terms, values, strict=True))


class Unchanged:
    """Stands in where there is nothing to put back."""

    def restore(self) -> None:
        """Do nothing."""


class Snapshot(Unchanged):
    """What a forward pass may change: what a model keeps beside parameters, torch's generators.

    An accumulation or an evaluation can be left half done; a step of one micro-batch needs none.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model, self._device = model, device
        learnt = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        kept = {name: value for name, value in model.state_dict().items() if name not in learnt}
        self._kept = copy.deepcopy(kept)
        self._random = random_state(device)

    def restore(self) -> None:
        """Put everything back."""
        self._model.load_state_dict(self._model.state_dict() | self._kept)
        set_random_state(self._random, self._device)
