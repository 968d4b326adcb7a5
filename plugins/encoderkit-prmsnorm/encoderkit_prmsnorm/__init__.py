"""Partial RMSNorm for encoderkit: what there is to choose. The code is in norm.py."""

from __future__ import annotations

from dataclasses import dataclass

from encoderkit.api import Options, Part, hookimpl, option

API_VERSION = 1
EQUATION = "gain * x / sqrt(mean(x^2 over the first share of the channels) + eps)"


@dataclass(slots=True, kw_only=True)
class PRMSNormOptions(Options):
    """The options of `norm=prmsnorm`."""

    share: float = option(0.0625, "share of the channels that is looked at", above=0, at_most=1)
    eps: float = option(1e-6, "added to the mean square", above=0)


@hookimpl
def encoderkit_parts() -> list[Part]:
    """Add `norm=prmsnorm`."""
    return [
        Part("norm", "prmsnorm", "encoderkit_prmsnorm.norm:PRMSNorm", EQUATION, PRMSNormOptions)
    ]
