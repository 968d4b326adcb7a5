"""One variant of a sweep, built once without data: what it is, and what it holds and costs."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from encoderkit.config.check import SEEDS
from encoderkit.config.identity import part_versions, semantic
from encoderkit.config.schema import Config
from encoderkit.errors import InputError

LENGTH = 128  # tokens of the sequence that FLOPs are counted on
_ELSEWHERE = ("train", "task", "init", "seed", "seed_init", "seed_data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a model holds and costs: counted on the meta device, so no numbers are drawn.

    `parameters` are the whole model's, `stack` those without embedding and head; `shapes` by path;
    `decayed` the paths with weight decay; `gains` what the init multiplies the weights of branches
    with. FLOPs for each token of a forward pass through the stack at 128 tokens; None where a
    part's shapes depend on data, or 128 tokens are too many for it.
    """

    parameters: int
    stack: int
    shapes: dict[str, tuple[int, ...]]
    decayed: frozenset[str]
    gains: frozenset[float]
    flops: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A checked point of a sweep, with its seeds and its facts.

    `seconds` are those of one training step, measured; None where nobody asked.
    """

    label: str
    point: tuple[str, ...]
    config: Config
    seeds: list[int]
    facts: Facts
    seconds: float | None = None

    @property
    def timed_as(self) -> str:
        """12 hex digits for what decides the time of a step: all but the seeds and the budget."""
        tree = what(self)
        train = {k: v for k, v in tree["train"].items() if k not in ("steps", "warmup")}
        held = [tree | {"train": train}, part_versions(self.config)]
        text = json.dumps(held, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class Counts:
    """Counts models, each kind of model once."""

    def __init__(self, flops: bool = True) -> None:
        self._flops = flops
        self._known: dict[str, Facts] = {}

    def facts(self, config: Config, sizes: tuple[int, int]) -> Facts:
        """Return the facts of a configuration's model. Errors: as in `build_model`."""
        tree = {k: v for k, v in semantic(config).items() if k not in _ELSEWHERE}
        parts = {k: v for k, v in part_versions(config).items() if k not in _ELSEWHERE}
        name = json.dumps([tree, parts, sizes], sort_keys=True)
        if name not in self._known:
            self._known[name] = _counted(config, sizes, self._flops)
        return self._known[name]


def _counted(config: Config, sizes: tuple[int, int], with_flops: bool) -> Facts:
    from encoderkit.nn.build import build_model  # imports torch
    from encoderkit.nn.cost import flops
    from encoderkit.train.optim import decay_groups

    model = build_model(config, *sizes, device="meta")
    shapes = {path: tuple(p.shape) for path, p in model.named_parameters()}
    own = [p for path, p in model.named_parameters() if not path.startswith(("embed.", "head."))]
    gains = {float(getattr(m, "branch_gain", 1.0)) for m in model.modules()}
    spent = None
    with suppress(InputError):  # 128 tokens may be too long for a table
        spent = sum(flops(model, LENGTH).values()) if with_flops else None
    return Facts(
        parameters=sum(p.numel() for p in model.parameters()),
        stack=sum(p.numel() for p in own),
        shapes=shapes,
        decayed=frozenset(decay_groups(model)["decay"]),
        gains=frozenset(gains),
        flops=None if spent is None or spent != spent else spent,
    )


def what(variant: Variant) -> dict[str, Any]:
    """Return the tree that decides a variant's numbers, without the seeds that follow `seed`."""
    tree = semantic(variant.config)
    return {k: v for k, v in tree.items() if k not in SEEDS or v != tree["seed"]}
