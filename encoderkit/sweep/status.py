"""Where a sweep stands, read from its directory while it runs. Nothing here imports torch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from encoderkit.errors import StoreError
from encoderkit.sweep import lock, record, store
from encoderkit.sweep.best import Best, Standing
from encoderkit.sweep.record import Record
from encoderkit.sweep.run import LOG_FILE
from encoderkit.sweep.symptoms import METRICS_FILE
from encoderkit.train.metrics import Metric, read_metrics
from encoderkit.train.verdict import Loss, so_far

MISSING = "waiting"  # the state of a cell that has no record yet


@dataclass(frozen=True, slots=True)
class Active:
    """A run that a process holds, how far its metrics say it is, and what is wrong so far."""

    label: str
    seed: int | None
    step: int
    steps: int
    loss: float | None  # of the last validation
    trouble: str

    @property
    def share(self) -> float:
        """The share of its steps that is still to be done."""
        return 1 - min(self.step / self.steps, 1) if self.steps else 1


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that failed, and where to read more."""

    label: str
    seed: int | None
    state: str
    reason: str
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Numbers of cells, states by variant, and what a watcher wants to know.

    Interrupted cells wait. Tokens a second of one run, seconds; None until a cell has ended.
    `remaining` goes by the finished cells and is None while nothing runs.
    """

    directory: Path
    cells: int
    done: int
    running: int
    failed: int
    waiting: int
    variants: dict[str, dict[str, int]]
    tokens_per_second: float | None
    remaining: float | None
    active: list[Active]
    best: tuple[Best, ...]
    failures: list[Failure]
    notes: list[str]
    command: str
    attended: bool  # a runner is there, though no cell may run at the moment

    @property
    def over(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self.running and not self.waiting

    def content(self) -> dict[str, Any]:
        """Return everything as plain data."""
        content = dataclasses.asdict(self) | {"directory": str(self.directory)}
        return {"schema": record.SCHEMA, **content}


@dataclass(frozen=True, slots=True)
class _Cell:
    """One cell, and its record where there is one."""

    label: str
    seed: int | None
    found: Record | None
    place: Path

    @property
    def state(self) -> str:
        return self.found.state if self.found else MISSING


def status(directory: Path | None = None) -> Status:
    """Return where a results directory stands, or the newest sweep.

    Errors: StoreError when there is none.
    """
    where = store.newest_sweep() if directory is None else directory
    plan, notes = _plan(where)
    listed: Sequence[Mapping[str, Any]] = plan["cells"] if plan else []
    found = store.records(where, {str(cell["id"]) for cell in listed})
    cells = _planned(where, listed, found.records) if plan else _unplanned(where, found.records)
    extra = len(found.records) - sum(cell.found is not None for cell in cells)
    notes += [f"{extra} runs are in no plan, and are not counted"] if extra else []
    notes += [f"left out: {text}" for text in found.malformed]
    if found.malformed:
        notes.append(f"what is left out: encoderkit doctor {where}")
    ended = [cell.found for cell in cells if cell.found and cell.found.done]
    running = [cell for cell in cells if cell.state == record.RUNNING]
    failed = [cell for cell in cells if cell.state in record.FAILURES]
    active = [_active(cell) for cell in running]
    standing = Standing(ended)
    return Status(
        directory=where,
        cells=len(cells),
        done=len(ended),
        running=len(running),
        failed=len(failed),
        waiting=len(cells) - len(ended) - len(running) - len(failed),
        variants=_variants(cells),
        tokens_per_second=standing.tokens_per_second,
        remaining=_remaining(cells, active),
        active=active,
        best=standing.best,
        failures=[_failure(cell) for cell in failed],
        notes=notes,
        command=str(plan.get("command", "")) if plan else "",
        attended=lock.attended(where),
    )


def _plan(where: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the plan of a directory, or None and why its runs are counted without one."""
    try:
        return store.sweep(where), []
    except StoreError as error:
        return None, [f"counted without a plan: {error}"]


def _planned(
    where: Path, listed: Iterable[Mapping[str, Any]], records: Iterable[Record]
) -> list[_Cell]:
    by_id = {each.id: each for each in records}
    cells = []
    for cell in listed:
        found = by_id.get(str(cell["id"]))
        label = str(cell.get("label", cell["id"]))
        seed = cell.get("seed", found.seeds["seed"] if found else None)
        cells.append(_Cell(label, seed, found, where / f"{cell.get('slug')}-{cell['id']}"))
    return cells


def _unplanned(where: Path, records: Iterable[Record]) -> list[_Cell]:
    names = {path.parent.name for path in where.glob(f"*/{record.FILE}")}
    places = {each.id: [n for n in names if n.endswith(each.id)] for each in records}
    return [
        _Cell(each.label, each.seeds["seed"], each, where / min(places[each.id], key=len))
        for each in sorted(records, key=lambda each: each.started)
        if places[each.id]
    ]


def _variants(cells: Iterable[_Cell]) -> dict[str, dict[str, int]]:
    """Return how many cells of each variant are in which state."""
    counts: dict[str, Counter[str]] = {}
    for cell in cells:
        counts.setdefault(cell.label, Counter())[cell.state] += 1
    return {label: dict(sorted(count.items())) for label, count in counts.items()}


def _remaining(cells: Sequence[_Cell], running: Sequence[Active]) -> float | None:
    """Return the seconds until the last cell ends, if as many go on at once as run now."""
    spent: dict[str, list[float]] = {}
    for cell in cells:
        if cell.found and cell.found.done and (seconds := cell.found.seconds.get("total")):
            spent.setdefault(cell.label, []).append(seconds)
    waiting = [cell for cell in cells if cell.state in (MISSING, record.INTERRUPTED)]
    usual = _mean(seconds for listed in spent.values() for seconds in listed)
    if not waiting and not running:
        return 0.0
    if usual is None or not running:
        return None
    work = sum((_mean(spent.get(c.label, ())) or usual) for c in waiting)
    work += sum((_mean(spent.get(each.label, ())) or usual) * each.share for each in running)
    return work / len(running)


def _active(cell: _Cell) -> Active:
    found = cell.found
    steps = found.budget.get("steps", 0) if found else 0
    written = list(_written(cell.place / METRICS_FILE))
    losses = [
        Loss(m.step, m.value) for m in written if m.name == "val/loss" and m.value is not None
    ]
    trivial = found.task.get("trivial_loss") if found else None
    return Active(
        cell.label,
        cell.seed,
        written[-1].step if written else 0,
        steps,
        losses[-1].value if losses else None,
        so_far(losses, trivial) if isinstance(trivial, int | float) else "",
    )


def _written(path: Path) -> Iterator[Metric]:
    """Yield the metrics of a run that goes on; its file may grow and be cut meanwhile."""
    with contextlib.suppress(OSError, StoreError, RecursionError):
        for each in read_metrics(path):
            if isinstance(each.step, int) and isinstance(each.value, int | float | None):
                yield each


def _failure(cell: _Cell) -> Failure:
    reason = cell.found.reason if cell.found else ""
    return Failure(cell.label, cell.seed, cell.state, reason, str(cell.place / LOG_FILE))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) / len(known) if known else None
