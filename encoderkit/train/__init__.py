"""Training: one call, `fit`. Names are loaded when first used, so that readers need no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from encoderkit.train.device import environment, pick_device
    from encoderkit.train.loop import Outcome, Watch, fit
    from encoderkit.train.metrics import read_metrics
    from encoderkit.train.optim import decay_groups

_HOME = {
    "Outcome": "encoderkit.train.loop",
    "Watch": "encoderkit.train.loop",
    "decay_groups": "encoderkit.train.optim",
    "environment": "encoderkit.train.device",
    "fit": "encoderkit.train.loop",
    "pick_device": "encoderkit.train.device",
    "read_metrics": "encoderkit.train.metrics",
}

__all__ = [
    "Outcome",
    "Watch",
    "decay_groups",
    "environment",
    "fit",
    "pick_device",
    "read_metrics",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'encoderkit.train' has no attribute {name!r}")
