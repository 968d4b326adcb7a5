"""What a request would run: every cell checked, named and counted before the first one trains."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoderkit.config.check import show
from encoderkit.config.compose import Composer
from encoderkit.config.schema import SweepOptions
from encoderkit.errors import ConfigError, Fault, StoreError
from encoderkit.fs import write_atomic
from encoderkit.plugins import registry
from encoderkit.sweep import axes, lock, record, store
from encoderkit.sweep.cell import Cell
from encoderkit.sweep.draft import Draft
from encoderkit.sweep.factors import Against, against
from encoderkit.sweep.grid import Grid, grid
from encoderkit.sweep.match import NOTED, match_steps, match_width
from encoderkit.sweep.variant import Counts, Variant

_OWN = frozenset({"tree", "parts", "task", "git", "against"})  # what stands elsewhere at length


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """One variant of a plan: what it holds and costs, and how it stands to the baseline.

    `seconds` of a training step, where the budget is one of seconds; `timed_as` what was timed.
    """

    label: str
    parameters: int
    flops: float | None
    against: Against
    seconds: float | None = None
    timed_as: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The cells of a sweep, seed by seed, with where and how they run; iterable, printable, JSON.

    `merged` has the labels that turned out to be another variant, and which; `illegal` those that
    were left out, each with all its faults; `excluded` counts the points that a condition left out.
    """

    directory: Path
    cells: tuple[Cell, ...]
    axes: tuple[str, ...]
    baseline: str
    variants: tuple[Outline, ...]
    merged: dict[str, str]
    illegal: dict[str, list[str]]
    excluded: int
    command: str
    sweep: SweepOptions
    threads: int

    def __iter__(self) -> Iterator[Cell]:
        """Yield the cells in the order in which they run."""
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def __str__(self) -> str:
        """Return a line for each cell."""
        return "\n".join(f"{cell.id}  {cell.label}  seed={cell.seed}" for cell in self.cells)

    @property
    def labels(self) -> list[str]:
        """The variants, in the order they were asked for."""
        return list(dict.fromkeys(cell.label for cell in self.cells))

    def content(self) -> dict[str, Any]:
        """Return the plan as plain data: what sweep.json holds."""
        cells = [dataclasses.asdict(cell) for cell in self.cells]
        return {
            "schema": record.SCHEMA,
            "axes": self.axes,
            "baseline": self.baseline,
            "variants": [dataclasses.asdict(variant) for variant in self.variants],
            "merged": self.merged,
            "illegal": self.illegal,
            "excluded": self.excluded,
            "command": self.command,
            "cells": [{k: v for k, v in cell.items() if k not in _OWN} for cell in cells],
        }

    def to_json(self) -> str:
        """Return the plan as strict JSON."""
        return record.dump(self.content()).decode()

    def save(self) -> None:
        """Write sweep.json into the plan's directory, which is made.

        Errors: StoreError when it cannot be written, or is of another sweep that runs there now.
        """
        there = store.sweep(self.directory) if lock.attended(self.directory) else None
        if there and {cell["id"] for cell in there["cells"]} != {cell.id for cell in self.cells}:
            raise StoreError(
                f"{self.directory}: another sweep runs there: {there.get('command', '')}. "
                "Wait for its end, or give this one a place of its own: sweep.name=NAME."
            )
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomic(self.directory / store.SWEEP_FILE, record.dump(self.content()))
        except OSError as error:
            raise StoreError(
                f"{self.directory}: no results can be written there: {error.strerror}. "
                "Try sweep.dir=DIR."
            ) from error


def plan(
    overrides: Sequence[str],
    *,
    seeds: int | Sequence[int] | None = None,
    config_dirs: Sequence[Path] = (),
    command: str = "",
    skip_illegal: bool = False,
    told: Callable[[int, int], None] = lambda done, points: None,
) -> Plan:
    """Return the checked plan of a sweep; nothing is written.

    plan(["norm=layernorm,rmsnorm", "placement=pre,post"], seeds=3)

    Errors: ConfigError with all faults of all variants; those of some only name them. With
    `skip_illegal` variants that have faults are left out, and named in the plan. `told` hears how
    many of the points are checked.
    """
    words = list(overrides)
    if seeds is not None:
        words.append(f"seeds={seeds if isinstance(seeds, int) else show(list(seeds))}")
    with Composer(registry(), config_dirs) as composer:
        spanned = grid(composer, words)
        _refuse_runner_axes(spanned.axes)
        draft = Draft(composer, config_dirs, spanned.sweep)
        for n, point in enumerate(spanned.points):
            told(n, len(spanned.points))
            draft.add(point, axes.label(point, spanned.axes))
        if not skip_illegal or not draft.variants:
            draft.refuse()
        directory = _directory(draft.sweep, axes.digest(words))
        base, keys = _matched(draft, directory)
        if not skip_illegal:
            draft.refuse()
        cells = draft.cells()
    outlines = _outlines(draft, base, spanned, keys)
    return Plan(
        directory=directory,
        cells=_where_they_are(directory, [_with(cell, outlines) for cell in cells]),
        axes=tuple(key for key in spanned.axes if key != "seed"),
        baseline=draft.merged.get(base.label, base.label),
        variants=tuple(outlines.values()),
        merged=draft.merged,
        illegal=draft.illegal(),
        excluded=spanned.excluded,
        command=command,
        sweep=draft.sweep,
        threads=draft.threads,
    )


def _baseline(draft: Draft) -> Variant:
    """Return the variant that the others are compared with.

    Errors: ConfigError when `sweep.baseline` names none, or several.
    """
    if draft.sweep.baseline is None:
        return draft.variants[0]
    labels = list(dict.fromkeys(variant.label for variant in draft.variants))
    name = axes.match(draft.sweep.baseline, labels, "sweep.baseline")
    return next(variant for variant in draft.variants if variant.label == name)


def _matched(draft: Draft, directory: Path) -> tuple[Variant, dict[str, tuple[str, ...]]]:
    """Solve widths and steps for every variant but the baseline.

    Return the baseline, and the keys that were set, by label.
    """
    keys: dict[str, tuple[str, ...]] = {}
    solvers = [match_width] if draft.sweep.match != "none" else []
    solvers += [match_steps] if draft.sweep.budget != "steps" else []
    base = _baseline(draft)

    for solve in solvers:
        if solve is match_steps and draft.sweep.budget == "seconds":
            _time(draft, directory)
            base = _baseline(draft)

        def change(variant: Variant, solve: Any = solve, base: Variant = base) -> Variant:
            if variant.label == base.label:
                return variant
            found = solve(variant, base, draft.sweep, draft.again)
            keys[variant.label] = keys.get(variant.label, ()) + found.keys
            return found.variant  # type: ignore[no-any-return]

        draft.adjust(change)
    return base, keys


def _time(draft: Draft, directory: Path) -> None:
    """Time a step of each variant, but for those that the plan in the directory has timed.

    Times vary from one call to the next, and a plan must not: its cells would be others.
    """
    found = store.sweep(directory) or {}
    known = {v.get("timed_as"): v.get("seconds") for v in found.get("variants", [])}

    def change(variant: Variant) -> Variant:
        from encoderkit.train.trial import trial  # imports torch

        seconds = known.get(variant.timed_as) or trial(variant.config)[0]
        return dataclasses.replace(variant, seconds=seconds)

    draft.adjust(change)


def _outlines(
    draft: Draft, base: Variant, spanned: Grid, keys: dict[str, tuple[str, ...]]
) -> dict[str, Outline]:
    """Return the outline of each variant that has cells, by label, the baseline first."""
    found: dict[str, Outline] = {}
    first = draft.merged.get(base.label, base.label)
    for variant in draft.variants:
        if variant.label not in found and variant.label not in draft.merged:
            set_for_it = keys.get(variant.label, ())
            found[variant.label] = Outline(
                label=variant.label,
                parameters=variant.facts.parameters,
                flops=variant.facts.flops,
                against=against(variant, base, spanned.factors, set_for_it),
                seconds=variant.seconds,
                timed_as="" if variant.seconds is None else variant.timed_as,
            )
    return {first: found[first]} | found


def _with(cell: Cell, outlines: dict[str, Outline]) -> Cell:
    stands = dataclasses.asdict(outlines[cell.label].against)
    baseline = next(iter(outlines))
    return dataclasses.replace(cell, against={"baseline": baseline, **_listed(stands)})


def _listed(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a mapping with lists for tuples, as JSON gives them back."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in tree.items()}


def notes(asked: Plan, confounded: bool = True) -> list[str]:
    """Return what a reader must know of a plan: what is one, left out, confounded or unmatched.

    Without `confounded` for who says elsewhere what is.
    """
    found = [f"{label} is {other}; it runs once" for label, other in asked.merged.items()]
    found += [f"{asked.excluded} points left out by sweep.exclude"] * bool(asked.excluded)
    for label, faults in asked.illegal.items():
        found += [f"left out: {label}: {fault}" for fault in faults]
    for each in asked.variants:
        if each.against.confounded and confounded:
            found.append(f"confounded: {each.label}: {'; '.join(each.against.confounded)}")
    if asked.sweep.match != "none":
        by = {"params": "parameters", "flops": "flops"}[asked.sweep.match]
        for each in asked.variants:
            off = getattr(each.against, by)
            if off is not None and abs(off) > NOTED:
                found.append(f"{each.label}: {off:+.1%} {by} after matching")
    return found


def single(overrides: Sequence[str], *, config_dirs: Sequence[Path] = ()) -> tuple[Path, Cell]:
    """Return the one cell of a request without axes, and the results directory it belongs in.

    Errors: ConfigError with all faults; several values or seeds are faults, and what only a sweep
    heeds.
    """
    with Composer(registry(), config_dirs) as composer:
        config = composer.configure(overrides)
        idle = sorted(
            key
            for key in config.said
            if key.startswith("sweep.") and key not in ("sweep.dir", "sweep.name", "sweep.seeds")
        )
        if idle:
            hint = "Leave it out, or type `encoderkit sweep` with the same words."
            raise ConfigError([Fault(key, "has no effect on one run.", hint) for key in idle])
        if config.sweep.seeds not in (1, [config.seed]):
            hint = "Use seed=0, or `encoderkit sweep` with the same words."
            fault = Fault(f"sweep.seeds={show(config.sweep.seeds)}", "one run has one seed.", hint)
            raise ConfigError([fault])
        draft = Draft(composer, config_dirs, config.sweep, Counts(flops=False))
        draft.add(tuple(overrides), " ".join(axes.without_runner(overrides)) or axes.DEFAULT)
        draft.refuse()
        cells = draft.cells()
    directory = _directory(config.sweep, "train")
    (cell,) = _where_they_are(directory, cells)
    return directory, cell


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
    """Return where the results go. Errors: ConfigError when no file system has such a name."""
    found = Path(sweep.dir) if sweep.dir is not None else store.ROOT / (sweep.name or name)
    if long := [part for part in found.parts if len(os.fsencode(part)) > 255]:
        key = "sweep.name" if sweep.dir is None else "sweep.dir"
        problem = f"a name has at most 255 bytes, and this one has {len(os.fsencode(long[0]))}."
        raise ConfigError([Fault(f"{key}={long[0]}", problem, "Give a shorter one.")])
    return found
