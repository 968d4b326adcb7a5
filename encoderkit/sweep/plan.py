"""What a request would run: every cell checked, named and counted before the first one trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from encoderkit.config.check import plain, show
from encoderkit.config.compose import Composer
from encoderkit.config.identity import identity, part_versions
from encoderkit.config.schema import Config, SweepOptions
from encoderkit.errors import ConfigError, Fault, StoreError
from encoderkit.fs import write_atomic
from encoderkit.plugins import registry
from encoderkit.sweep import axes, git, record, store
from encoderkit.sweep.cell import Cell
from encoderkit.sweep.draft import Draft, Tasks
from encoderkit.sweep.grid import grid

_OWN = frozenset({"tree", "parts", "task", "git"})  # what a cell's own files say at length


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The cells of a sweep, seed by seed, with where and how they run."""

    directory: Path
    cells: tuple[Cell, ...]
    axes: tuple[str, ...]
    baseline: str
    merged: dict[str, str]  # labels that turned out to be another variant, and which
    command: str
    sweep: SweepOptions
    threads: int

    @property
    def labels(self) -> list[str]:
        """The variants, in the order they were asked for."""
        return list(dict.fromkeys(cell.label for cell in self.cells))

    def save(self) -> None:
        """Write sweep.json into the plan's directory, which is made.

        Errors: StoreError when it cannot be written.
        """
        cells = [dataclasses.asdict(cell) for cell in self.cells]
        content = {
            "schema": record.SCHEMA,
            "axes": self.axes,
            "baseline": self.baseline,
            "merged": self.merged,
            "command": self.command,
            "cells": [{k: v for k, v in cell.items() if k not in _OWN} for cell in cells],
        }
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomic(self.directory / store.SWEEP_FILE, record.dump(content))
        except OSError as error:
            raise StoreError(
                f"{self.directory}: no results can be written there: {error.strerror}. "
                "Try sweep.dir=DIR."
            ) from error


def plan(overrides: Sequence[str], *, config_dirs: Sequence[Path] = (), command: str = "") -> Plan:
    """Return the checked plan of a sweep; nothing is written.

    Errors: ConfigError with all faults of all cells; those of some cells only name them.
    """
    with Composer(registry(), config_dirs) as composer:
        spanned = grid(composer, overrides)
        keys = spanned.axes
        _refuse_runner_axes(keys)
        draft = Draft(composer, config_dirs)
        for point in spanned.points:
            draft.add(point, axes.label(point, keys))
    cells, sweep = draft.finish(), draft.sweep
    labels = list(dict.fromkeys(cell.label for cell in cells))
    if sweep.baseline is None:
        baseline = labels[0]
    else:
        names = {label: label for label in labels} | draft.merged
        baseline = names[axes.match(sweep.baseline, list(names), "sweep.baseline")]
    directory = _directory(sweep, axes.digest(overrides))
    return Plan(
        directory=directory,
        cells=_where_they_are(directory, cells),
        axes=tuple(key for key in keys if key != "seed"),
        baseline=baseline,
        merged=draft.merged,
        command=command,
        sweep=sweep,
        threads=draft.threads,
    )


def single(overrides: Sequence[str], *, config_dirs: Sequence[Path] = ()) -> tuple[Path, Cell]:
    """Return the one cell of a request without axes, and the results directory it belongs in.

    Errors: ConfigError with all faults; several values or seeds are faults.
    """
    with Composer(registry(), config_dirs) as composer:
        config = composer.configure(overrides)
        if config.sweep.seeds not in (1, [config.seed]):
            hint = "Use seed=0, or `encoderkit sweep` with the same words."
            fault = Fault(f"sweep.seeds={show(config.sweep.seeds)}", "one run has one seed.", hint)
            raise ConfigError([fault])
        draft = Draft(composer, config_dirs)
        draft.add(tuple(overrides), " ".join(axes.without_runner(overrides)) or axes.DEFAULT)
    directory = _directory(config.sweep, "train")
    (cell,) = _where_they_are(directory, draft.finish())
    return directory, cell


def planned(directory: Path, config: Config) -> Cell:
    """Return the cell of the plan in `directory` that `config` is.

    Errors: StoreError when the plan has no such cell.
    """
    found = store.sweep(directory)
    facts = Tasks().facts(config)
    wanted = identity(config, facts.data_hash)
    for each in found["cells"] if found else []:
        if each["id"] == wanted:
            own = {"tree": plain(config), "parts": part_versions(config), "task": facts.about}
            return Cell(**{**each, **own, "overrides": tuple(each["overrides"])}, git=git.state())
    raise StoreError(f"{directory}: cell {wanted} is not in its plan. Run the sweep again.")


def _where_they_are(directory: Path, cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Return the cells under the names that runs of the same identity have there already."""
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    known = {name.rpartition("-")[2]: name for name in sorted(names, key=len, reverse=True)}
    return tuple(
        dataclasses.replace(cell, slug=known[cell.id].rpartition("-")[0])
        if cell.id in known and cell.name not in names
        else cell
        for cell in cells
    )


def _refuse_runner_axes(keys: Sequence[str]) -> None:
    hint = "Give one value; a list is sweep.seeds=[0,1]."
    faults = [
        Fault(key, "says how a sweep runs, and cannot vary within one.", hint)
        for key in keys
        if key.startswith(("sweep.", "run."))
    ]
    if faults:
        raise ConfigError(faults)


def _directory(sweep: SweepOptions, name: str) -> Path:
    return Path(sweep.dir) if sweep.dir is not None else store.ROOT / (sweep.name or name)
