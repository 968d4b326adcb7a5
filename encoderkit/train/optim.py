"""The optimizer, its groups and its schedule."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.optim import AdamW

from encoderkit.config.schema import TrainOptions


def decay_groups(model: nn.Module) -> dict[str, list[str]]:
    """Return the names of the trained parameters, those with weight decay and those without.

    Decay is for tensors of two or more dimensions that are no embedding. A module may say
    `weight_decay = True` or `False` for all that is in it; the innermost one that speaks counts.
    """
    groups: dict[str, list[str]] = {"decay": [], "no_decay": []}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        path, _, _ = name.rpartition(".")
        embedding = isinstance(model.get_submodule(path), nn.Embedding)
        decays = parameter.dim() >= 2 and not embedding
        for part in _around(model, path):
            decays = getattr(part, "weight_decay", decays)
        groups["decay" if decays else "no_decay"].append(name)
    return groups


def _around(model: nn.Module, path: str) -> Iterator[nn.Module]:
    """Yield the modules that hold what is at `path`, outermost first, itself last."""
    module = model
    yield module
    for word in path.split(".") if path else []:
        module = module.get_submodule(word)
        yield module


def optimizer(model: nn.Module, options: TrainOptions) -> AdamW:
    """Return AdamW (arXiv 1711.05101) over the model's two groups."""
    parameters = dict(model.named_parameters())
    rates = {"decay": options.weight_decay, "no_decay": 0.0}
    groups = [
        {"params": [parameters[name] for name in names], "weight_decay": rates[group]}
        for group, names in decay_groups(model).items()
    ]
    betas = (options.beta1, options.beta2)
    return AdamW(groups, lr=options.lr, betas=betas, fused=True)


def rate(options: TrainOptions, step: int) -> float:
    """Return the learning rate of a step, counted from 0.

    Warm-up: lr (step + 1) / warmup. Then lr, or lr (steps - step) / (steps - warmup).
    """
    if step < options.warmup:
        return options.lr * (step + 1) / options.warmup
    if options.schedule == "constant":
        return options.lr
    return options.lr * (options.steps - step) / (options.steps - options.warmup)
