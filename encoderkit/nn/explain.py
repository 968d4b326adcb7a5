"""What a configuration builds, as data: its equation, and where parameters and FLOPs are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from torch import nn

from encoderkit.config.check import show
from encoderkit.config.schema import Config
from encoderkit.nn.base import NoNorm
from encoderkit.nn.build import build_stack
from encoderkit.nn.cost import flops
from encoderkit.nn.stack import EncoderStack, Sublayer


@dataclass(frozen=True, slots=True)
class Row:
    """What equal parts in one place of the layers hold and cost together.

    `role` is position, branch, placement or final. Shares are of the whole stack. None is unknown.

    Units: `flops` for each token of a forward pass.
    """

    slot: str
    role: str
    part: str
    shape: str
    parameters: int
    share: float
    flops: float | None
    flops_share: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """One equation a line; one row for equal parts; the sums over all rows.

    Units: `flops` for each token of a sequence of `length` tokens; None is unknown.
    """

    equation: list[str]
    rows: list[Row]
    parameters: int
    flops: float | None
    length: int


def explain(config: Config, length: int = 128) -> Explanation:
    """Return what the stack of a configuration computes, and where its parameters and FLOPs are.

    Embedding and head belong to a task and are not counted. Nothing is allocated. FLOPs are those
    of `encoderkit.nn.cost.flops`: matrix products only.

    Units: `length` in tokens.

    Errors: ConfigError, PluginError, InputError for a length that a part refuses.
    """
    stack = build_stack(config, device="meta")
    cost = flops(stack, length)
    total, whole = _parameters(stack), math.fsum(cost.values())
    rows = []
    for (slot, role, part, shape), paths in _places(stack, config).items():
        count = sum(_parameters(stack.get_submodule(path)) for path in paths)
        spent = math.fsum(cost[key] for path in paths for key in cost if _below(key, path))
        share = _known(spent / whole if whole else 0.0)
        sizes = count, count / total if total else 0.0
        rows.append(Row(slot, role, part, shape, *sizes, _known(spent), share))
    return Explanation(_equation(stack, config), rows, total, _known(whole), length)


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _below(path: str, root: str) -> bool:
    return f"{path}.".startswith(f"{root}.")


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _layers(stack: EncoderStack) -> list[dict[str, Sublayer]]:
    return [dict(cast(nn.ModuleDict, layer).items()) for layer in stack.layers]  # type: ignore[arg-type]


def _places(stack: EncoderStack, config: Config) -> dict[tuple[str, str, str, str], list[str]]:
    """Return the paths of the parts in use, by what makes them equal: slot, role, name, shape."""
    places: dict[tuple[str, str, str, str], list[str]] = {}
    for slot, role, part, path in _parts(stack, config):
        key = (slot, role, part, _shape(stack.get_submodule(path)))
        places.setdefault(key, []).append(path)
    return places


def _parts(stack: EncoderStack, config: Config) -> Iterator[tuple[str, str, str, str]]:
    """Yield slot, role, name and path of each part in use."""
    for name in stack.position:
        yield "position", "position", name, f"position.{name}"
    norm = config.norm.entry.part.name
    placed = f"{config.placement.entry.part.name} with {norm}"
    for n, layer in enumerate(_layers(stack)):
        for slot in layer:
            path, part = f"layers.{n}.{slot}", getattr(config, _kind(slot)).entry.part.name
            yield slot, "branch", part, f"{path}.branch"
            yield slot, "placement", placed, f"{path}.placement"
    if not isinstance(stack.final, NoNorm):
        yield "final", "final", norm, "final"


def _kind(slot: str) -> str:
    return "attention" if slot.startswith("attention") else "ffn"


def _shape(module: nn.Module) -> str:
    """Return the tensors of one module, those of one shape together: q, k, v, out (64, 64)."""
    names: dict[str, list[str]] = {}
    for path, parameter in module.named_parameters():
        names.setdefault(str(tuple(parameter.shape)), []).append(path.removesuffix(".weight"))
    return "; ".join(f"{', '.join(held)} {shape}" for shape, held in names.items())


def _equation(stack: EncoderStack, config: Config) -> list[str]:
    """Return one line for each sublayer, then what each name in them stands for."""
    layers = _layers(stack)
    lines = [f"{len(layers)} times:"]
    for slot, sublayer in layers[0].items():
        lines.append(f"  x = {sublayer.placement.equation.replace('f(', f'{slot}(')}")
    if not isinstance(stack.final, NoNorm):
        lines.append("then x = N(x)")
    used = {slot: getattr(config, _kind(slot)) for slot in layers[0]}
    for name, chosen in {**used, "N": config.norm, "position": config.position}.items():
        values = dataclasses.asdict(chosen.options).items()
        options = ", ".join(f"{key}={show(value)}" for key, value in values)
        part = chosen.entry.part
        lines.append(f"{name} is {part.name}{f' ({options})' * bool(options)}: {part.summary}")
    return lines
