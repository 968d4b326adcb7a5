"""Hyper-connections for encoderkit: what there is to choose. The code is in placement.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from encoderkit.api import Options, Part, hookimpl, option

API_VERSION = 1


@dataclass(slots=True, kw_only=True)
class HyperOptions(Options):
    """The options of `placement=hyper`."""

    streams: int = option(4, "residual streams side by side", at_least=1)
    dynamic: bool = option(False, "mixing weights that each token moves a little, too")


@hookimpl
def encoderkit_parts() -> list[Part]:
    """Add `placement=hyper`."""
    return [
        Part(
            "placement",
            "hyper",
            "encoderkit_hyper.placement:Hyper",
            "sum_i A_ij x_i + b_j f(N(sum_i a_i x_i)) in stream j, a final norm",
            HyperOptions,
        )
    ]


@hookimpl
def encoderkit_presets() -> Path:
    """Add `placement=hyper_dynamic`."""
    return Path(__file__).parent / "conf"
