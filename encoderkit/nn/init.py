"""Weights by name: what a tensor starts with depends on (seed, its path) and on nothing else."""

from __future__ import annotations

import torch
from torch import nn

from encoderkit.nn.base import Init
from encoderkit.nn.context import key

__all__ = ["generator", "key", "redraw"]


def generator(seed: int, *words: str | int) -> torch.Generator:
    """Return a CPU generator that is a function of (seed, words)."""
    return torch.Generator().manual_seed(key(seed, *words))


@torch.no_grad()
def redraw(module: nn.Module, init: Init, seed: int) -> None:
    """Draw every Linear and Embedding anew, each tensor from a generator of (seed, its path).

    A part with `owns_init` keeps its own values.
    """
    owned = [f"{path}." for path, m in module.named_modules() if getattr(m, "owns_init", False)]
    for path, layer in module.named_modules():
        if f"{path}.".startswith(tuple(owned)):
            continue
        if isinstance(layer, nn.Linear):
            init.weight(layer.weight, generator(seed, f"{path}.weight"))
            if layer.bias is not None:
                init.bias(layer.bias, layer.in_features, generator(seed, f"{path}.bias"))
        elif isinstance(layer, nn.Embedding):
            init.embedding(layer.weight, generator(seed, f"{path}.weight"))
