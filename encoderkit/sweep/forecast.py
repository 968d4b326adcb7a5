"""What a plan will take: seconds and bytes of each variant, from runs, from trials, or unknown."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoderkit.config.check import check
from encoderkit.config.presets import Presets
from encoderkit.config.schema import Config
from encoderkit.errors import EncoderkitError
from encoderkit.plugins import registry
from encoderkit.sweep import store
from encoderkit.sweep.cell import Cell

STATES = 16  # bytes a parameter: weight, gradient and AdamW's two moments, float32
KEPT = 12  # bytes a parameter in a checkpoint: the same without the gradient
TIGHT = 0.8  # of the free space


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one run of a variant takes; `source` says where that is from. None is unknown.

    Memory is that of weights, gradients and the optimizer, and after a trial also what the forward
    pass keeps for the backward pass; disk is that of the checkpoints which stay.
    """

    seconds: float | None
    memory_bytes: int
    disk_bytes: int
    source: str


def forecasts(directory: Path, cells: Iterable[Cell], trials: bool = False) -> dict[str, Forecast]:
    """Return the forecast of each variant, by label.

    Seconds are the mean of the variant's finished runs in `directory`; or, with `trials`, those of
    a few steps that are run now; or what a budget's preset says; or unknown.
    """
    first = {cell.label: cell for cell in reversed(list(cells))}
    ended, presets = _ended(directory), Presets(registry())
    return {
        label: _forecast(cell, ended.get((label, *_budget(cell)), []), trials, presets)
        for label, cell in reversed(first.items())
    }


def _budget(cell: Cell) -> tuple[int, int]:
    train = cell.tree["train"]
    return train["steps"], train["batch"]


def disk_bytes(cells: Iterable[Cell]) -> int:
    """Return what the checkpoints of all cells take, by `run.keep`."""
    return sum(KEPT * cell.parameters * _checkpoints(cell) for cell in cells)


def _checkpoints(cell: Cell) -> int:
    """Return how many checkpoints of a cell stay."""
    run, steps = cell.tree["run"], _budget(cell)[0]
    every = run["checkpoint_every"] or steps
    copies = {"none": -1, "last": 0, "best": 1, "all": -(-steps // every)}
    return 1 + copies[run["keep"]]


def disk_notes(directory: Path, cells: Sequence[Cell]) -> list[str]:
    """Return a warning when the checkpoints that are still to come may fill the disk."""
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    needed = disk_bytes(cell for cell in cells if cell.name not in names)
    place = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if needed <= TIGHT * free:
        return []
    size, left = amount(needed), amount(free)
    return [f"the checkpoints will take {size}, and {left} are free on the disk of {directory}"]


def amount(size: float) -> str:
    """Return a number of bytes in words."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    power = next((n for n in range(len(units) - 1) if size < 1024 ** (n + 1)), len(units) - 1)
    return f"{size / 1024**power:.{1 if power else 0}f} {units[power]}"


def _ended(directory: Path) -> dict[tuple[Any, ...], list[float]]:
    """Return the seconds of the finished runs in a directory, by label and budget."""
    found: dict[tuple[Any, ...], list[float]] = {}
    try:
        records = store.records(directory).records if directory.is_dir() else []
    except EncoderkitError:
        records = []  # then there is nothing to learn from
    for each in records:
        if each.done and each.seconds.get("total"):
            name = (each.label, each.budget.get("steps"), each.budget.get("batch"))
            found.setdefault(name, []).append(each.seconds["total"])
    return found


def _forecast(cell: Cell, ended: list[float], trials: bool, presets: Presets) -> Forecast:
    held, disk = STATES * cell.parameters, disk_bytes([cell])
    if ended:
        runs = f"{len(ended)} run{'s' * (len(ended) > 1)}"
        return Forecast(sum(ended) / len(ended), held, disk, f"{runs} that ended")
    config = check(cell.tree, registry())
    if trials:
        from encoderkit.train.trial import trial  # imports torch

        a_step, kept = trial(config)
        return Forecast(a_step * config.train.steps, held + kept, disk, "trial steps")
    seconds = _expected(config, presets)
    return Forecast(seconds, held, disk, "the budget's preset" if seconds else "unknown")


def _expected(config: Config, presets: Presets) -> float | None:
    """Return what the preset of a budget says, where the run is the one that it speaks of."""
    model, train = config.model, config.train
    tiny = presets.read("model", "tiny")
    sizes = ("d_model", "n_layers", "n_heads")
    if any(getattr(model, name) != tiny[name] for name in sizes) or model.layers:
        return None
    for name in presets.groups["train"]:
        said = presets.read("train", name)
        if (said["steps"], said["batch"]) == (train.steps, train.batch):
            return train.expected_seconds.get(config.task.entry.part.name)
    return None
