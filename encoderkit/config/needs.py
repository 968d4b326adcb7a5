"""What a request asks of its parts, and which other parts could do what one cannot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from encoderkit.api import Device, Part, Precision
from encoderkit.config.check import show
from encoderkit.config.layers import chosen_of, sublayers_of
from encoderkit.config.schema import Chosen, Config
from encoderkit.errors import Fault
from encoderkit.registry import Registry

PRECISIONS: dict[str, Precision] = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Ask:
    """What one types, and what it takes: a capability, a device or a dtype; an option, if one."""

    text: str
    need: str = ""
    option: str = ""


def conflicts(config: Config, registry: Registry, place: Mapping[str, str]) -> list[Fault]:
    """Return a fault for each part that cannot do what is asked of it, with all that it cannot.

    `place` is where the parts will run, as one types it, and the device or dtype that this means.
    """
    faults: dict[Fault, None] = {}
    where = [Ask(text, need) for text, need in place.items()]
    for kind, parts in _used(config):
        asks = [*(_asks_of(config, parts) if kind == "attention" else []), *where]
        fault = _conflict(config, kind, parts[kind], asks, registry)
        faults |= {fault: None} if fault else {}
    return list(faults)


def _used(config: Config) -> Iterator[tuple[str, Mapping[str, Chosen]]]:
    """Yield every part that stands in a layer: its kind, and the parts of its sublayer."""
    for layer in range(config.model.n_layers if config.model.layers else 1):
        for term, parts in sublayers_of(config, layer):
            for kind in (*term.kinds, "norm", "placement", "position"):
                yield kind, parts


def _asks_of(config: Config, parts: Mapping[str, Chosen]) -> list[Ask]:
    """Return what the position and the attention's own options ask of it."""
    position, attention = parts["position"], parts["attention"]
    label = f"{place_of(config, 'position', position)}={position.entry.part.name}"
    asks = [Ask(label, need) for need in sorted(position.entry.part.traits.needs)]
    path = place_of(config, "attention", attention)
    for spec in dataclasses.fields(attention.options):
        value = getattr(attention.options, spec.name)
        text, need = f"{path}.{spec.name}={show(value)}", spec.metadata.get("needs") or ""
        if value not in (None, False, 0) if need else value != spec.default:
            asks.append(Ask(text, need, spec.name))
    return asks


def place_of(config: Config, kind: str, chosen: Chosen) -> str:
    """Return where a part was chosen: `attention`, or the rule `model.layers[0].attention`."""
    return next((place for place, held in chosen_of(config).items() if held is chosen), kind)


def _conflict(
    config: Config, kind: str, chosen: Chosen, asks: list[Ask], registry: Registry
) -> Fault | None:
    part, path = chosen.entry.part, place_of(config, kind, chosen)
    lacking = _lacking(part, asks)
    if not lacking:
        return None
    needs = {ask.need for ask in lacking}
    problem = f"cannot serve {_listed(lacking)} ({chosen.entry.owner})."
    if needs & set(get_args(Device)):
        problem += f" It runs on {' and '.join(sorted(part.traits.devices))}."
    if needs & set(get_args(Precision)):
        problem += f" It computes in {' and '.join(sorted(part.traits.precisions))}."
    others = [e.part for e in registry if e.part.kind == kind and e.part.target is not None]
    others = [other for other in others if other.name != part.name]
    hint = _nearest(path, others, asks, len(lacking)) or f"No other {kind} comes nearer."
    return Fault(f"{path}={part.name}", problem, hint)


def _lacking(part: Part, asks: Iterable[Ask]) -> list[Ask]:
    """Return what is asked of a part that it does not say it can do, or has no option for."""
    traits = part.traits
    can = {"", *traits.serves, *traits.devices, *traits.precisions}
    own = {"", *(spec.name for spec in dataclasses.fields(part.options))}
    return [ask for ask in asks if ask.need not in can or ask.option not in own]


def _nearest(path: str, others: list[Part], asks: list[Ask], fewest: int) -> str:
    """Return which other parts can do it, or else which comes nearest, or nothing."""
    lacks = {other.name: _lacking(other, asks) for other in others}
    able = [name for name, missing in lacks.items() if not missing]
    if able:
        return f"{', '.join(able)} can: try {path}={able[0]}."
    name = min(lacks, key=lambda other: len(lacks[other]), default="")
    if not name or len(lacks[name]) >= fewest:
        return ""
    return f"None can do all; {path}={name} can all but {_listed(lacks[name])}."


def _listed(asks: Iterable[Ask]) -> str:
    needs: dict[str, list[str]] = {}
    for ask in asks:
        said = not ask.need or ask.text.endswith(f"={ask.need}")  # run.device=cpu
        needs.setdefault(ask.text, []).extend([] if said else [ask.need])
    return ", ".join(f"{t} ({', '.join(n)})" if n else t for t, n in needs.items())
