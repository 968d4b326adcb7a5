"""What a configuration builds, as data: its equation, and where its parameters are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from torch import nn

from encoderkit.config.check import show
from encoderkit.config.schema import Config
from encoderkit.nn.base import NoNorm, Placement
from encoderkit.nn.build import build_stack
from encoderkit.nn.stack import EncoderStack, Sublayer


@dataclass(frozen=True, slots=True)
class Row:
    """The parameters of one part, over all layers; `share` is of the whole stack."""

    slot: str
    part: str
    shape: str
    parameters: int
    share: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """One equation a line; one row a part; the number of parameters."""

    equation: list[str]
    rows: list[Row]
    parameters: int


def explain(config: Config) -> Explanation:
    """Return what the stack of a configuration computes, and where its parameters are.

    Embedding and head belong to a task and are not counted. Nothing is allocated.

    Errors: ConfigError, PluginError.
    """
    stack = build_stack(config, device="meta")
    total = sum(p.numel() for p in stack.parameters())
    rows = []
    for slot, part, modules in _parts(stack, config):
        count = sum(p.numel() for module in modules for p in module.parameters())
        share = count / total if total else 0.0
        rows.append(Row(slot, part, _shape(modules[0]), count, share))
    return Explanation(_equation(stack, config), rows, total)


def _layers(stack: EncoderStack) -> list[dict[str, Sublayer]]:
    return [dict(cast(nn.ModuleDict, layer).items()) for layer in stack.layers]  # type: ignore[arg-type]


def _parts(stack: EncoderStack, config: Config) -> Iterator[tuple[str, str, list[nn.Module]]]:
    """Yield slot, part name and the modules of all layers, for each part in use."""
    for name, module in stack.position.items():
        yield "position", name, [module]
    layers, norm = _layers(stack), config.norm.entry.part.name
    for slot in layers[0]:
        branches: list[nn.Module] = [layer[slot].branch for layer in layers]
        yield slot, getattr(config, _kind(slot)).entry.part.name, branches
        placements: list[nn.Module] = [layer[slot].placement for layer in layers]
        yield slot, f"{config.placement.entry.part.name} with {norm}", placements
    if not isinstance(stack.final, NoNorm):
        yield "final", norm, [stack.final]


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
        endings = [sublayer.placement.ending for sublayer in layers[-1].values()]
        lines.append(f"then x = {endings[-1] if endings else Placement.ending}")
    used = {slot: getattr(config, _kind(slot)) for slot in layers[0]}
    for name, chosen in {**used, "N": config.norm, "position": config.position}.items():
        values = dataclasses.asdict(chosen.options).items()
        options = ", ".join(f"{key}={show(value)}" for key, value in values)
        part = chosen.entry.part
        lines.append(f"{name} is {part.name}{f' ({options})' * bool(options)}: {part.summary}")
    return lines
