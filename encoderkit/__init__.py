"""encoderkit: the bench on which Transformer encoders are compared.

Public names are loaded when first used, so that importing the package stays free of torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from encoderkit.config.request import configure
    from encoderkit.config.schema import Config
    from encoderkit.nn.build import build
    from encoderkit.nn.stack import EncoderStack
    from encoderkit.sweep.load import load
    from encoderkit.sweep.plan import plan

_HOME = {
    "build": "encoderkit.nn.build",
    "configure": "encoderkit.config.request",
    "Config": "encoderkit.config.schema",
    "EncoderStack": "encoderkit.nn.stack",
    "load": "encoderkit.sweep.load",
    "plan": "encoderkit.sweep.plan",
}

__all__ = ["Config", "EncoderStack", "build", "configure", "load", "plan"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'encoderkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
