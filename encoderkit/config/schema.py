"""The typed form of a whole request: what `check` makes and what everything below it reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from encoderkit.api import Options, option
from encoderkit.registry import Entry


@dataclass(slots=True)
class Chosen:
    """The part chosen for one kind, with its options.

    `changed` names the options in which it differs from the part chosen above it, where a rule says
    just those; None is a choice of its own.
    """

    entry: Entry
    options: Options
    changed: frozenset[str] | None = field(default=None, compare=False)


@dataclass(slots=True)
class Rule:
    """Other parts for some layers: those that `at` selects, and there the sublayer `slot`, or all.

    `at` is a layer's number, a list of them, or a slice "start:stop:step", as Python counts.
    """

    at: int | str | list[int]
    slot: str | None
    parts: dict[str, Chosen]


@dataclass(slots=True, kw_only=True)
class ModelOptions(Options):
    """Sizes, and what stands in every layer."""

    d_model: int = option(..., "width of the residual stream", at_least=1, at_most=65536)
    n_layers: int = option(..., "number of layers", at_least=1, at_most=10000)
    n_heads: int = option(..., "number of attention heads; divides d_model", at_least=1)
    d_ff: int | None = option(
        None, "inner width of the FFN; null is 4 d_model", at_least=1, at_most=524288
    )
    sublayers: list[str] = option(
        ["attention", "ffn"],
        "the sublayers of a layer, in order; attention+ffn is a parallel pair, 0.5*ffn is scaled",
    )
    layers: list[Rule] = option(
        [], "other parts for some layers, such as {at: '::3', slot: attention, norm: none}"
    )
    embed_norm: Chosen | None = option(
        None, "a norm before the first layer: a choice, or options such as {eps: 1e-5}"
    )
    final_norm: str = option(
        "auto",
        "a norm after the last layer; auto asks the placement",
        choices=("auto", "true", "false"),
        when="norm.part!=none",
    )


@dataclass(slots=True, kw_only=True)
class TrainOptions(Options):
    """A budget and its optimizer: how a run is trained."""

    steps: int = option(..., "optimizer steps", at_least=1)
    batch: int = option(..., "sequences in a step", at_least=1)
    accumulate: int = option(1, "micro-batches that a step is split into", at_least=1)
    lr: float = option(3e-3, "peak learning rate", above=0)
    schedule: str = option(
        "linear",
        "after the warm-up: linear decay to 0, or constant",
        choices=("linear", "constant"),
    )
    warmup: int = option(..., "steps of linear warm-up", at_least=0)
    weight_decay: float = option(0.01, "AdamW's decoupled decay", at_least=0)
    beta1: float = option(0.9, "AdamW's first-moment decay", at_least=0, below=1)
    beta2: float = option(0.98, "AdamW's second-moment decay", at_least=0, below=1)
    clip: float | None = option(1.0, "largest global gradient norm; null does not clip", above=0)
    precision: str = option(
        "fp32", "bf16 runs the forward pass under autocast", choices=("fp32", "bf16")
    )
    eval_every: int = option(
        100, "steps between evaluations; 0 evaluates at the end only", at_least=0
    )
    judge_stall: bool = option(True, "call a run stalled when it ends near the trivial loss")
    expected_seconds: dict[str, float] = option(
        {}, "how long this budget takes on one core, by task, with model=tiny"
    )


@dataclass(slots=True, kw_only=True)
class RunOptions(Options):
    """Where and how a run is executed; never part of its identity."""

    device: str = option(
        "auto", "auto takes CUDA when there is one", choices=("auto", "cpu", "cuda")
    )
    threads: int = option(1, "torch threads of one run", at_least=1)
    checkpoint_every: int = option(
        200, "steps between checkpoints; 0 writes one at the end", at_least=0
    )
    keep: str = option(
        "last",
        "checkpoints that stay: the last; the best by validation loss too; all; or none at the end",
        choices=("last", "best", "all", "none"),
    )


@dataclass(slots=True, kw_only=True)
class SweepOptions(Options):
    """How a sweep is run; never part of a cell's identity."""

    dir: str | None = option(None, "results directory; null is runs/NAME or runs/HASH-OF-THE-AXES")
    name: str | None = option(None, "names the results directory runs/NAME", when="sweep.dir=null")
    seeds: int | list[int] = option(1, "a number of seeds (0, 1, ...), or a list of them")
    jobs: int | None = option(
        None, "cells at once; null is the number of cores / run.threads", at_least=1
    )
    baseline: str | None = option(
        None, "the variant that others are compared with; null is the first"
    )
    timeout: float | None = option(None, "seconds after which a cell is ended", above=0)
    memory: float | None = option(
        None, "GiB that a cell may allocate on the CPU; more is its error", at_least=0.5
    )
    retries: int = option(0, "how often a cell that failed is run again at once", at_least=0)
    match: str = option(
        "none",
        "what a free width makes equal to the baseline's",
        choices=("none", "params", "flops"),
    )
    match_multiple: int = option(
        8, "matched widths are multiples of this", at_least=1, when="sweep.match!=none"
    )
    budget: str = option(
        "steps", "what all variants spend alike", choices=("steps", "tokens", "flops", "seconds")
    )
    zip: list[str] = option([], "axes that move together, each item such as norm+placement")
    one_at_a_time: bool = option(
        False, "vary one axis at a time, the others at their first values, in place of a grid"
    )
    also: list[str] = option([], "further grids, each item such as 'norm=rmsnorm ffn=relu,gelu'")
    optional: list[str] = option([], "keys that are set only where a variant's part has them")
    exclude: list[str] = option(
        [], "points to leave out, each item such as 'norm=batchnorm placement!=pre'"
    )


@dataclass(slots=True, kw_only=True)
class Config:
    """A whole request, checked; `said` are the keys that the request itself set, not its files."""

    model: ModelOptions
    norm: Chosen
    placement: Chosen
    ffn: Chosen
    attention: Chosen
    position: Chosen
    init: Chosen
    task: Chosen
    train: TrainOptions
    run: RunOptions
    sweep: SweepOptions
    seed: int
    seed_init: int
    seed_data: int
    said: frozenset[str] = field(default=frozenset(), compare=False)


SETTINGS: dict[str, type[Options]] = {
    "model": ModelOptions,
    "train": TrainOptions,
    "run": RunOptions,
    "sweep": SweepOptions,
}
