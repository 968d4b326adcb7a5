"""Weights by name: what a tensor starts with depends on (seed, its path) and on nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from encoderkit.nn.base import Init
from encoderkit.nn.context import key

__all__ = ["generator", "key", "redraw"]


def generator(seed: int, *words: str | int) -> torch.Generator:
    """Return a CPU generator that is a function of (seed, words)."""
    return torch.Generator().manual_seed(key(seed, *words))


@torch.no_grad()
def redraw(
    module: nn.Module, init: Init, seed: int, gains: Mapping[str, float] | None = None
) -> None:
    """Draw every Linear and Embedding anew, each tensor from a generator of (seed, its path).

    A part with `owns_init` keeps its own values. `gains` has a factor for the weights below some
    paths; what the part that holds a map lists under `selects` is spared.
    """
    found = dict(module.named_modules())
    owned = [f"{path}." for path, m in found.items() if getattr(m, "owns_init", False)]
    for path, layer in found.items():
        if f"{path}.".startswith(tuple(owned)):
            continue
        if isinstance(layer, nn.Linear):
            init.weight(layer.weight, generator(seed, f"{path}.weight"))
            home, _, name = path.rpartition(".")
            for below, gain in (gains or {}).items():
                if path.startswith(f"{below}.") and name not in getattr(found[home], "selects", ()):
                    layer.weight.mul_(gain)
            if layer.bias is not None:
                init.bias(layer.bias, layer.in_features, generator(seed, f"{path}.bias"))
        elif isinstance(layer, nn.Embedding):
            init.embedding(layer.weight, generator(seed, f"{path}.weight"))
