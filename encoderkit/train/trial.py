"""A few steps of a run, to know what the whole of it will take."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch

from encoderkit.config.schema import Config
from encoderkit.data.build import build_task
from encoderkit.nn.build import build_model
from encoderkit.train.device import pick_device, settings
from encoderkit.train.optim import optimizer
from encoderkit.train.step import Stepper

STEPS = 5  # the first one warms up and is not counted


def trial(config: Config) -> tuple[float, int]:
    """Return the seconds of a training step, and the bytes that the forward pass keeps for it
    beside the weights.

    The median of a few steps, each on a batch of its own, and what the first one keeps; nothing is
    written.
    """
    device = pick_device(config.run.device)
    with settings(config.run.threads, device):
        task = build_task(config)
        model = build_model(config, task.vocab, task.outputs).to(device).train()
        train, seconds = config.train, []
        stepper, steps = Stepper(model, task, train, device), optimizer(model, train)
        kept: dict[int, int] = {}
        weights = {each.untyped_storage().data_ptr() for each in model.parameters()}

        def note(tensor: torch.Tensor) -> Any:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        noting = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        for k in range(STEPS):
            start = time.perf_counter()
            batch = task.batch(k, train.batch)
            steps.zero_grad()
            with nullcontext() if k else noting:  # which takes time of its own
                stepper.add(batch, batch, k)
            stepper.finish()
            steps.step()
            seconds.append(time.perf_counter() - start)
    return sorted(seconds[1:])[len(seconds[1:]) // 2], sum(kept.values())
