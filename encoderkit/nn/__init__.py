"""The door for what computes: base classes for parts, and what a stack is made of.

Shape letters, the same everywhere: B sequences, S padded length, T the length of one sequence, N
packed tokens, M scored tokens, D d_model, H heads, K head width, F d_ff, V vocabulary, L layers.
"""

from __future__ import annotations

from encoderkit.errors import ConfigError, Fault, InputError
from encoderkit.nn.attention import Attention, Kernel, Mixer, by_sequence
from encoderkit.nn.base import (
    FFN,
    Branch,
    Dropout,
    Init,
    NoNorm,
    Norm,
    Placement,
    Position,
    Tables,
    embedding,
)
from encoderkit.nn.context import Ctx, Out
from encoderkit.nn.site import Site
from encoderkit.nn.stack import EncoderStack

__all__ = [
    "FFN",
    "Attention",
    "Branch",
    "ConfigError",
    "Ctx",
    "Dropout",
    "EncoderStack",
    "Fault",
    "Init",
    "InputError",
    "Kernel",
    "Mixer",
    "NoNorm",
    "Norm",
    "Out",
    "Placement",
    "Position",
    "Site",
    "Tables",
    "by_sequence",
    "embedding",
]
