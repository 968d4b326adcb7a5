"""Dynamic Tanh for encoderkit: what there is to choose. The code is in norm.py."""

from __future__ import annotations

from dataclasses import dataclass

from encoderkit.api import Options, Part, hookimpl, option

API_VERSION = 1


@dataclass(slots=True, kw_only=True)
class DyTOptions(Options):
    """The options of `norm=dyt`."""

    alpha: float = option(0.5, "where the learned steepness of the tanh starts", above=0)


@hookimpl
def encoderkit_parts() -> list[Part]:
    """Add `norm=dyt`."""
    return [
        Part("norm", "dyt", "encoderkit_dyt.norm:DyT", "gamma * tanh(alpha x) + beta", DyTOptions)
    ]
