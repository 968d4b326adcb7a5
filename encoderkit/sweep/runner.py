"""All cells of a plan, each in a process of its own; what is done stays done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from encoderkit.errors import StoreError
from encoderkit.sweep import lock, record, store
from encoderkit.sweep.best import Best, Standing
from encoderkit.sweep.cell import Cell
from encoderkit.sweep.plan import Plan
from encoderkit.sweep.pool import AGAIN, Ending, Events, Pool, Work, context
from encoderkit.sweep.record import Record
from encoderkit.sweep.run import (
    HELD,
    LOG_FILE,
    close_for,
    ended_before,
    finished,
    opening,
    run_cell,
)

PRELOAD = ("encoderkit.sweep.warm",)
_CLOSED = {"died": "killed", "orphaned": "killed", "raised": "error"}  # states, by cause


@dataclass(frozen=True, slots=True)
class View:
    """Where a sweep stands: numbers of cells, and seconds."""

    cells: int
    skipped: int  # were done before
    done: int  # ended as results, the skipped ones included
    failed: int
    running: int
    waiting: int
    jobs: int
    seconds: float
    remaining: float | None  # an estimate; None until a cell has ended
    tokens_per_second: float | None  # of one run, while it trains
    best: tuple[Best, ...]  # of each task, the cells included that were done before

    @property
    def counts(self) -> str:
        """The numbers in words."""
        return f"{self.done} done, {self.running} running, {self.failed} failed of {self.cells}"


@dataclass(frozen=True, slots=True)
class Ended:
    """One cell that has ended; `value` is its task's metric, None when it has none."""

    label: str
    seed: int
    state: str
    reason: str
    metric: str
    value: float | None
    seconds: float
    skipped: bool
    leads: bool  # is the best of its task so far
    log: Path


class Observer:
    """What a sweep tells while it runs; this one does not listen."""

    def begin(self, view: View) -> None:
        """The cells that were done before are counted; nothing has started."""

    def started(self, cell: Cell, view: View) -> None:
        """A cell's process was started."""

    def ended(self, ended: Ended, view: View) -> None:
        """A cell has ended, or was done before."""

    def again(self, ended: Ended, view: View) -> None:
        """A cell has failed, and is run once more."""

    def held(self, cell: Cell, view: View) -> None:
        """Another process runs this cell; it is looked at again later."""

    def tick(self, view: View) -> None:
        """Some time has passed, about a tenth of a second."""

    def stop(self) -> bool:
        """Return whether to stop what runs, in order; asked as often as `tick` is called."""
        return False

    def finish(self, view: View, interrupted: bool) -> None:
        """Nothing runs any more."""


def warm_up() -> None:
    """Start the warm server, which imports torch while the caller does something else.

    Errors: StoreError.
    """
    context(PRELOAD, start=True)


def run_sweep(
    plan: Plan,
    observer: Observer | None = None,
    *,
    fail_fast: bool = False,
    retry_failed: bool = False,
) -> int:
    """Run what is not done of a plan, and return the exit code.

    Interrupted cells go on from their checkpoint. Cells that ended in error, killed or timeout at
    an earlier start are run again only with `retry_failed`. With `fail_fast` the first failure
    stops the others in order.

    Errors: StoreError when the directory cannot be written, or when another sweep runs there.
    """
    plan.save()
    return run_cells(plan, observer, fail_fast=fail_fast, retry_failed=retry_failed)


def run_cells(
    plan: Plan,
    observer: Observer | None = None,
    *,
    fail_fast: bool = False,
    retry_failed: bool = False,
) -> int:
    """Run what is not done of a plan that is saved, or of a share of it, as `run_sweep` does.

    Errors: StoreError when the directory cannot be written, or no process be started.
    """
    sweep = _Sweep(plan, observer or Observer(), fail_fast, retry_failed)
    memory = None if plan.sweep.memory is None else int(plan.sweep.memory * 2**30)
    pool = Pool(jobs=sweep.jobs, timeout=plan.sweep.timeout, memory=memory, preload=PRELOAD)
    with lock.attend(plan.directory):
        interrupted = pool.run(sweep.works(), sweep) or sweep.stopped
    sweep.finish(interrupted)
    if sweep.too_many and not interrupted:
        return 1
    return exit_code(sweep.states.values(), interrupted)


def exit_code(states: Iterable[str], interrupted: bool = False) -> int:
    """Return 0 when all states are results, 130 when one was interrupted, else 1."""
    found = set(states)
    if interrupted or record.INTERRUPTED in found:
        return 130
    return 0 if found <= record.RESULTS else 1


def states(plan: Plan) -> dict[str, str]:
    """Return the state of every cell of a plan, from its record; `missing` where there is none."""
    found = {}
    for cell in plan.cells:
        try:
            found[cell.id] = store.read(plan.directory / cell.name).state
        except StoreError:
            found[cell.id] = "missing"
    return found


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _in_process(cell: Cell, root: Path, known: str, *, stop: Callable[[], str]) -> str:
    state = run_cell(cell, root, stop=stop, known=known)
    return AGAIN if state == HELD else state


class _Sweep(Events):
    """Counts, tells the observer, and closes the records of processes that could not."""

    def __init__(self, plan: Plan, observer: Observer, fail_fast: bool, retry_failed: bool) -> None:
        self.fail_fast, self.retry_failed = fail_fast, retry_failed
        self.tries: dict[str, int] = {}
        self.known: dict[str, str] = {}  # when the failure started that a cell is run again for
        self.orphans: set[str] = set()
        self.stopped = False
        self.plan = plan
        self.observer = observer
        self.jobs = plan.sweep.jobs or max(1, cores() // plan.threads)
        self.states: dict[str, str] = {}
        self._by_name = {cell.name: cell for cell in plan.cells}
        self._began = time.monotonic()
        self._skipped = 0
        self._running = 0
        self._spent: list[float] = []
        self._standing = Standing()

    def works(self) -> list[Work]:
        """Return the cells that are not done as work, and tell of the others."""
        root, cells = self.plan.directory, self.plan.cells
        settled = finished if self.retry_failed else ended_before
        found = [(cell, settled(cell, root)) for cell in cells]
        done = [(cell, before) for cell, before in found if before is not None]
        self._skipped = sum(before.done for _, before in done)
        self.states = {cell.id: before.state for cell, before in done}
        self.observer.begin(self.view())
        for cell, before in done:
            self.observer.ended(self._ended(cell, before, 0.0, skipped=True), self.view())
        todo = [cell for cell in cells if cell.id not in self.states]
        for cell in todo:
            if (failed := ended_before(cell, root)) is not None:
                self.known[cell.id] = failed.started
            try:
                (root / cell.name).mkdir(exist_ok=True)
            except OSError as error:
                raise StoreError(
                    f"{root / cell.name}: the run's directory cannot be made: {error.strerror}. "
                    "Free the place, or try sweep.dir=DIR."
                ) from error
        return [self._work(cell) for cell in todo]

    def _work(self, cell: Cell) -> Work:
        root = self.plan.directory
        arguments = (cell, root, self.known.get(cell.id, ""))
        return Work(cell.name, _in_process, arguments, root / cell.name / LOG_FILE)

    def started(self, work: Work) -> None:
        """Count it."""
        self._running += 1
        self.observer.started(self._by_name[work.name], self.view())

    def postponed(self, work: Work) -> None:
        """Tell that the cell is held elsewhere."""
        self._running -= 1
        self.observer.held(self._by_name[work.name], self.view())

    def ended(self, work: Work, ending: Ending) -> Work | None:
        """Settle the cell's state and tell, or ask for one more try."""
        cell = self._by_name[work.name]
        self._running -= 1
        self._spent.append(ending.seconds)
        anew = ending.cause == "orphaned" and cell.id not in self.orphans
        if anew:  # once; a part that ends the server does so again
            self.orphans.add(cell.id)
            ending = replace(ending, cause=record.INTERRUPTED)
        found = self._settle(cell, ending)
        if found.state == record.RUNNING:  # another runner has taken it up since its process died
            self.observer.held(cell, self.view())
            return work
        if anew:
            return work
        tries = self.tries[cell.id] = self.tries.get(cell.id, 0) + 1
        again = found.state in record.FAILURES and tries <= self.plan.sweep.retries
        ended = self._ended(cell, found, ending.seconds, skipped=False)
        if again:
            self.known[cell.id] = found.started
            self.observer.again(ended, self.view())
            return self._work(cell)
        self.states[cell.id] = found.state
        self.observer.ended(ended, self.view())
        return None

    @property
    def too_many(self) -> bool:
        """Whether a cell has failed that must not; earlier starts do not count."""
        return self.fail_fast and any(
            state in record.FAILURES for name, state in self.states.items() if name in self.tries
        )

    def enough(self) -> bool:
        """Tell whether a cell has failed that must not, or the observer wants an end."""
        self.stopped = self.stopped or self.observer.stop()
        return self.stopped or self.too_many

    def tick(self) -> None:
        """Pass it on."""
        self.observer.tick(self.view())

    def finish(self, interrupted: bool) -> None:
        """Pass it on."""
        self.observer.finish(self.view(), interrupted)

    def view(self) -> View:
        """Return where the sweep stands."""
        done = sum(state in record.RESULTS for state in self.states.values())
        left = len(self.plan.cells) - len(self.states)
        mean = sum(self._spent) / len(self._spent) if self._spent else None
        return View(
            cells=len(self.plan.cells),
            skipped=self._skipped,
            done=done,
            failed=sum(state in record.FAILURES for state in self.states.values()),
            running=self._running,
            waiting=left - self._running,
            jobs=self.jobs,
            seconds=time.monotonic() - self._began,
            remaining=None if mean is None else mean * left / self.jobs,
            tokens_per_second=self._standing.tokens_per_second,
            best=self._standing.best,
        )

    def _settle(self, cell: Cell, ending: Ending) -> Record:
        """Return the cell's record, closed on behalf of a process that could not."""
        root = self.plan.directory
        try:
            if ending.value is None:
                state = _CLOSED.get(ending.cause, ending.cause)
                close_for(cell, root, state, self._reason(ending))
            return record.load(root / cell.name)
        except (OSError, StoreError) as error:
            return replace(opening(cell), state="killed", reason=f"its record is lost: {error}")

    def _reason(self, ending: Ending) -> str:
        if ending.cause == "timeout":
            return f"longer than sweep.timeout={self.plan.sweep.timeout:g} seconds"
        return ending.words

    def _ended(self, cell: Cell, found: Record, seconds: float, *, skipped: bool) -> Ended:
        metric = str(found.task.get("metric", "loss"))
        return Ended(
            label=cell.label,
            seed=cell.seed,
            state=found.state,
            reason=found.reason,
            metric=metric,
            value=found.metrics.get(metric),
            seconds=found.seconds.get("total", seconds) if skipped else seconds,
            skipped=skipped,
            leads=self._standing.add(found),
            log=self.plan.directory / cell.name / LOG_FILE,
        )
