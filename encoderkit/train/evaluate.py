"""The score of a model on a task's evaluation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from encoderkit.data import Batch, Task
from encoderkit.errors import PluginError

Forward = Callable[[Batch], Tensor]


@torch.no_grad()
def evaluate(
    model: nn.Module, task: Task, forward: Forward, device: torch.device, poll: Callable[[], None]
) -> dict[str, float]:
    """Return the mean of each of the task's scores over all scored positions.

    The model is in eval mode meanwhile. torch's global generators are put aside: a part that draws
    in evaluation draws the same each time, and training's numbers do not notice. `poll` is called
    before each batch, and may raise.
    Errors: PluginError when the task scores nothing, or gives no loss.
    """
    sums: dict[str, Tensor] = {}
    count = 0
    model.eval()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            for batch in task.evaluation():
                poll()
                here = batch.to(device)
                for name, value in task.scores(forward(here), here).items():
                    sums[name] = sums.get(name, torch.zeros(())) + value.double().cpu()
                count += len(here.targets)
    finally:
        model.train()
    if "loss" not in sums or count == 0:
        raise PluginError(
            f"the task {type(task).__name__} must score at least one position of its evaluation, "
            "and a score must be called loss"
        )
    return {name: float(total) / count for name, total in sums.items()}
