"""What a configuration builds, as data: its equation, and where parameters and FLOPs are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from encoderkit.config.check import show
from encoderkit.config.layers import Term, sublayers_of
from encoderkit.config.schema import Chosen, Config
from encoderkit.nn.base import NoNorm, Placement
from encoderkit.nn.build import build_stack
from encoderkit.nn.cost import flops
from encoderkit.nn.stack import EncoderStack


@dataclass(frozen=True, slots=True)
class Row:
    """What equal parts in one place of the layers hold and cost together.

    `role` is position, embed_norm, branch, placement or final. Shares are of the whole stack. None
    is unknown.

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
    if config.model.embed_norm is not None:
        norm = config.model.embed_norm.entry.part.name
        yield "embed_norm", "embed_norm", norm, "embed_norm"
    for n in range(config.model.n_layers):
        for term, parts in sublayers_of(config, n):
            path, names = (
                f"layers.{n}.{term.slot}",
                {k: c.entry.part.name for k, c in parts.items()},
            )
            for kind in term.kinds:
                inside = f".{kind}" if len(term.kinds) > 1 else ""
                yield term.slot, "branch", names[kind], f"{path}.branch{inside}"
            placed = f"{names['placement']} with {names['norm']}"
            yield term.slot, "placement", placed, f"{path}.placement"
    if not isinstance(stack.final, NoNorm):
        yield "final", "final", config.norm.entry.part.name, "final"


def _shape(module: nn.Module) -> str:
    """Return the tensors of one module, those of one shape together: q, k, v, out (64, 64)."""
    names: dict[str, list[str]] = {}
    for path, parameter in module.named_parameters():
        names.setdefault(str(tuple(parameter.shape)), []).append(path.removesuffix(".weight"))
    return "; ".join(f"{', '.join(held)} {shape}" for shape, held in names.items())


def _equation(stack: EncoderStack, config: Config) -> list[str]:
    """Return one line for each sublayer, then what each name in them stands for."""
    blocks: dict[tuple[str, ...], list[int]] = {}
    meanings: dict[str, dict[str, list[int]]] = {}
    for n in range(config.model.n_layers):
        lines = []
        for term, parts in sublayers_of(config, n):
            equation = stack.get_submodule(f"layers.{n}.{term.slot}.placement").equation
            lines.append(f"  x = {str(equation).replace('f(', f'{_called(term)}(')}")
            if term.paired:
                lines.append(f"  {term.slot}(x) = {' + '.join(f'{k}(x)' for k in term.kinds)}")
            for name, kind in {
                **{k: k for k in term.kinds},
                "N": "norm",
                "position": "position",
            }.items():
                meanings.setdefault(name, {}).setdefault(_meaning(parts[kind]), []).append(n)
        blocks.setdefault(tuple(lines), []).append(n)
    found = []
    if config.model.embed_norm is not None:
        found.append("first x = embed_norm(x)")
        meanings["embed_norm"] = {_meaning(config.model.embed_norm): [0]}
    for block, layers in blocks.items():
        times = f"{len(layers)} times:" if len(blocks) == 1 else f"{_named(layers)}:"
        found += [times, *block]
    if not isinstance(stack.final, NoNorm):
        found.append(f"then x = {_ending(stack)}")
    for name in sorted(meanings, key=lambda name: name in ("N", "position")):  # parts first
        texts = meanings[name]
        for text, layers in texts.items():
            found.append(f"{name}{f' in {_named(layers)}' * (len(texts) > 1)} is {text}")
    return found


def _ending(stack: EncoderStack) -> str:
    """Return what the last placement does with the final norm."""
    last = [m for m in stack.modules() if isinstance(m, Placement)]
    return last[-1].ending if last else Placement.ending


def _called(term: Term) -> str:
    return term.slot if term.scale == 1 else f"{term.scale:g} {term.slot}"


def _named(layers: list[int]) -> str:
    numbers = ", ".join(map(str, dict.fromkeys(layers)))
    return f"layer {numbers}" if len(set(layers)) == 1 else f"layers {numbers}"


def _meaning(chosen: Chosen) -> str:
    values = dataclasses.asdict(chosen.options).items()
    options = ", ".join(f"{key}={show(value)}" for key, value in values)
    return f"{chosen.entry.part.name}{f' ({options})' * bool(options)}: {chosen.entry.part.summary}"
