"""One cell, in its directory: locked, recorded from the first moment, ended in a named state."""

from __future__ import annotations

import itertools
import platform
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

import encoderkit
from encoderkit.config.check import check
from encoderkit.config.identity import identity
from encoderkit.config.schema import Config
from encoderkit.errors import EncoderkitError, StoreError
from encoderkit.fs import clear_temporaries, write_atomic
from encoderkit.plugins import registry
from encoderkit.sweep import asked, lock, record, slots, store
from encoderkit.sweep.cell import Cell
from encoderkit.sweep.record import Record

if TYPE_CHECKING:
    from encoderkit.train.loop import Outcome, Watch

HELD = "held"  # what `run_cell` returns when another process runs the cell
CONFIG_FILE = "config.yaml"
LOG_FILE = "log.txt"

_RUNS = itertools.count()  # of this process

_WAIT = 5.0  # seconds for the children of a killed runner to let go of their cells


def run_cell(
    cell: Cell,
    root: Path,
    *,
    watch: Watch | None = None,
    stop: Callable[[], str] | None = None,
    known: str | None = None,
) -> str:
    """Run a cell in its directory below `root` unless it is done, and return its state.

    With `known`, the start of the failure that the caller has seen, another failure stands too:
    somebody else has run the cell meanwhile.

    A failed run is a state, never an exception. Without `stop`, Ctrl-C and SIGTERM end the run in
    order, and a second one at once. A process's second run has the isolation `shared`, and its
    peak memory is unknown.

    Errors: StoreError when the directory cannot be written.
    """
    directory = (root / cell.name).absolute()  # a part may change the current directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            if not held.enter_context(lock.hold(directory, _WAIT)):
                return HELD
            before = ended_before(cell, root)
            if before is not None and (before.done or known not in (None, before.started)):
                return before.state
            if stop is None:
                orders = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
                stop = held.enter_context(asked.listen(*orders, patience=1))
            return _Run(cell, directory, watch, stop).run()
    except OSError as error:
        raise StoreError(
            f"{directory}: the run's files cannot be written: {error.strerror or error}. "
            "Free the place, or try sweep.dir=DIR."
        ) from error


def finished(cell: Cell, root: Path) -> Record | None:
    """Return the record of a cell that is done, so that it need not run."""
    try:
        found = store.read(root / cell.name)
    except StoreError:
        return None
    return found if found.done else None


def ended_before(cell: Cell, root: Path) -> Record | None:
    """Return the record of a cell that is done or that failed; one left running is neither."""
    try:
        found = record.load(root / cell.name)
    except StoreError:
        return None
    return found if found.done or found.state in record.FAILURES else None


def opening(cell: Cell) -> Record:
    """Return the record of a cell that is about to run, with all that its plan knows."""
    train = cell.tree["train"]
    return Record(
        id=cell.id,
        label=cell.label,
        overrides=list(cell.overrides),
        parts=dict(cell.parts),
        task=dict(cell.task),
        seeds={name: cell.tree[name] for name in ("seed", "seed_init", "seed_data")},
        budget={"steps": train["steps"], "batch": train["batch"]},
        data_hash=cell.data_hash,
        parameters=cell.parameters,
        flops_per_token=cell.flops,
        against=dict(cell.against),
        started=record.now(),
        reproduce=cell.reproduce,
    )


def close_for(cell: Cell, root: Path, state: str, reason: str) -> str:
    """Close the record of a cell whose process is gone, unless it was closed; return its state.

    Errors: OSError when the record cannot be written.
    """
    directory = root / cell.name
    with lock.hold(directory, _WAIT) as mine:
        try:
            found = record.load(directory)
        except StoreError:
            found = opening(cell)
        if not mine or found.state != record.RUNNING:
            return found.state
        found.state, found.reason, found.ended = state, reason, record.now()
        record.save(found, directory)
    return state


class _Run:
    """The run of one cell whose lock is held."""

    def __init__(
        self,
        cell: Cell,
        directory: Path,
        watch: Watch | None,
        stop: Callable[[], str],
    ) -> None:
        self.cell = cell
        self.directory = directory
        self.alone = next(_RUNS) == 0
        self.watch = watch
        self.stop = stop
        self.record = opening(cell)
        self.began = time.monotonic()

    def run(self) -> str:
        """Train, and close the record in whatever way that ends. Errors: OSError."""
        clear_temporaries(self.directory)
        text = yaml.safe_dump(self.cell.tree, sort_keys=False, allow_unicode=True)
        write_atomic(self.directory / CONFIG_FILE, text.encode("utf-8", "surrogatepass"))
        record.save(self.record, self.directory)
        self._log(f"started: {self.cell.reproduce}")
        try:
            outcome = self._train()
        except SystemExit as error:
            self._fail(f"the run called exit({error.code!r})")
        except EncoderkitError as error:
            self._fail(str(error))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and self.stop():  # and no part's own
                self._end(record.INTERRUPTED, "stopped at once")
            else:
                self._fail(f"{type(error).__name__}: {error}".removesuffix(": "))
        else:
            self._take(outcome)
            self._end(outcome.state, outcome.reason)
        return self.record.state

    def _train(self) -> Outcome:
        from encoderkit.data.build import build_task  # these import torch
        from encoderkit.nn.build import build_model
        from encoderkit.sweep.watch import Obedient
        from encoderkit.train.loop import Watch, fit

        config = check(self.cell.tree, registry())
        task = build_task(config)
        self.record.environment = self._environment(config)
        self._refuse_another(identity(config, task.data_hash))
        model = build_model(config, task.vocab, task.outputs)
        self.record.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.record.slots = slots.filled(model.slots, registry())
        record.save(self.record, self.directory)
        watch = Obedient(self.watch or Watch(), self.stop, self._log)
        return fit(
            model,
            task,
            config.train,
            config.run,
            self.directory,
            identity=self.cell.id,
            watch=watch,
        )

    def _environment(self, config: Config) -> dict[str, Any]:
        from encoderkit.train.device import environment

        return {
            "python": platform.python_version(),
            "encoderkit": encoderkit.__version__,
            "platform": platform.platform(),
            **environment(config.run),
            "isolation": "process" if self.alone else "shared",
            "git": self.cell.git,
        }

    def _refuse_another(self, found: str) -> None:
        if found != self.cell.id:
            raise StoreError(
                f"{self.directory}: planned as {self.cell.id}, and now it would be {found}: "
                "a part's source or the data has changed since. Run the sweep again."
            )

    def _take(self, outcome: Outcome) -> None:
        self.record.steps = outcome.step
        self.record.tokens = outcome.tokens
        self.record.metrics = dict(outcome.metrics)
        self.record.seconds["train"] = outcome.seconds
        self.record.decay_groups = outcome.groups
        self.record.coverage, idle = slots.counted(self.record.slots, outcome.ran)
        self.record.notes += [*outcome.notes, *idle]

    def _fail(self, reason: str) -> None:
        self.record.traceback = traceback.format_exc()
        self._end("error", reason)

    def _end(self, state: str, reason: str) -> None:
        self.record.state, self.record.reason = state, reason
        self.record.seconds["total"] = time.monotonic() - self.began
        if self.alone:  # or the peak may be another run's
            self.record.peak_memory_bytes = _peak_memory()
        self.record.ended = record.now()
        record.save(self.record, self.directory)  # first: the log may be what finds the disk full
        self._log(f"{self.record.traceback}{state}{': ' if reason else ''}{reason}")

    def _log(self, text: str) -> None:
        with open(self.directory / LOG_FILE, "a", encoding="utf-8", errors="replace") as log:
            log.write(f"{record.now()} {text.rstrip()}\n")


def _peak_memory() -> int:
    """Return the most bytes that this process has had in memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
