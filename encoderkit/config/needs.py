"""What a request needs of its attention, and which attentions can do it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from encoderkit.api import Part
from encoderkit.config.layers import sublayers_of
from encoderkit.config.schema import Chosen, Config
from encoderkit.errors import Fault
from encoderkit.registry import Registry


def conflicts(config: Config, registry: Registry) -> list[Fault]:
    """Return a fault for each attention that cannot do what is asked, with all that it cannot."""
    faults: dict[Fault, None] = {}
    for layer in range(config.model.n_layers if config.model.layers else 1):
        for term, parts in sublayers_of(config, layer):
            if "attention" in term.kinds:
                fault = _conflict(parts, config, registry)
                faults |= {fault: None} if fault else {}
    return list(faults)


def _conflict(parts: Mapping[str, Chosen], config: Config, registry: Registry) -> Fault | None:
    chosen, position = parts["attention"], parts["position"]
    asked = {f"position={position.entry.part.name}": need for need in _needs_of(position)}
    asked |= _options_needs(chosen)
    asked |= {f"train.precision={config.train.precision}": PRECISIONS[config.train.precision]}
    if config.run.device != "auto":
        asked[f"run.device={config.run.device}"] = config.run.device
    part = chosen.entry.part
    lacking = _lacking(part, asked)
    if not lacking:
        return None
    problem = f"cannot serve {_listed(lacking)} ({chosen.entry.owner})."
    return Fault(f"attention={part.name}", problem, _nearest(asked, part, registry))


PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}


def _needs_of(position: Chosen) -> list[str]:
    return sorted(position.entry.part.traits.needs)


def _options_needs(chosen: Chosen) -> dict[str, str]:
    """Return what the attention's own options ask for, by the option as one would type it."""
    asked = {}
    for spec in dataclasses.fields(chosen.options):
        need, value = spec.metadata.get("needs"), getattr(chosen.options, spec.name)
        if need is not None and value not in (None, False, 0):
            asked[f"attention.{spec.name}={value}"] = need
    return asked


def _lacking(part: Part, asked: Mapping[str, str]) -> dict[str, str]:
    """Return what is asked of a part that it does not say it can do."""
    can = part.traits.serves | part.traits.devices | part.traits.precisions
    own = {spec.name for spec in dataclasses.fields(part.options)}
    missing = {}
    for text, need in asked.items():
        option = text.partition("=")[0].removeprefix("attention.")
        if need not in can or (text.startswith("attention.") and option not in own):
            missing[text] = need
    return missing


def _nearest(asked: Mapping[str, str], part: Part, registry: Registry) -> str:
    """Return which attentions can do it, or else which comes nearest."""
    others = [e.part for e in registry if e.part.kind == "attention" and e.part.name != part.name]
    others = [other for other in others if other.target is not None]
    lacks = {other.name: _lacking(other, asked) for other in others}
    able = [name for name, missing in lacks.items() if not missing]
    if able:
        return f"{', '.join(able)} can: try attention={able[0]}."
    if not lacks:
        return ""
    name = min(lacks, key=lambda other: len(lacks[other]))
    return f"None can do all; attention={name} can all but {_listed(lacks[name])}."


def _listed(asked: Mapping[str, str]) -> str:
    return ", ".join(f"{text} ({need})" for text, need in asked.items())
