"""An attention-free mixer for encoderkit: what there is to choose. The code is in mixer.py."""

from __future__ import annotations

from dataclasses import dataclass

from encoderkit.api import Options, Part, Traits, hookimpl, option

API_VERSION = 1


@dataclass(slots=True, kw_only=True)
class AFTOptions(Options):
    """The options of `attention=aft`."""

    reach: int = option(
        8, "the largest distance with a learned weight of its own, both sides", at_least=1
    )
    bias: bool = option(False, "biases in the q, v and out projections; in k one would cancel")


@hookimpl
def encoderkit_parts() -> list[Part]:
    """Add `attention=aft`."""
    return [
        Part(
            "attention",
            "aft",
            "encoderkit_aft.mixer:AFT",
            "sigmoid(q_t) * sum_s exp(k_s + w_(s-t)) v_s / sum_s exp(k_s + w_(s-t)), w learned",
            AFTOptions,
            Traits(own_maths=True, order_aware=True, serves=frozenset()),
        )
    ]
