"""What the drills share: a wire that acts before the n-th call, and works for cells' processes."""

from __future__ import annotations

import builtins
import dataclasses
import errno
import io
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

from encoderkit.sweep import pool, record, runner
from encoderkit.sweep.cell import Cell
from encoderkit.sweep.plan import Plan
from encoderkit.sweep.run import run_cell
from encoderkit.sweep.runner import Ended, Observer, View, run_sweep

SMALL = ["train.steps=5", "train.warmup=1", "train.eval_every=2", "train.batch=4"]
SMALL += ["train.judge_stall=false", "run.checkpoint_every=2", "task.eval_sequences=32"]
SMALL += ["model.d_model=8", "model.n_layers=1", "model.n_heads=2"]
CALLS = ("fsync", "ftruncate", "mkdir", "pwrite", "replace", "rmdir", "unlink")

Act = Callable[[int], None]
Make = Callable[..., Plan]


@dataclasses.dataclass(frozen=True)
class Found:
    """What a finished cell leaves, less what two runs may not share: times, stamps, the log."""

    files: list[str]
    metrics: bytes
    weights: bytes
    record: Mapping[str, Any]


class Wire:
    """Sees every call of this process that changes the disk, and lets `act` see its number."""

    def __init__(self, act: Act = lambda n: None) -> None:
        self.seen: list[str] = []
        self._act = act

    def touch(self, name: str) -> None:
        self.seen.append(name)
        self._act(len(self.seen))

    def asked(self, stop: Callable[[], str] = lambda: "") -> str:
        """Pass an order on: that a run asks for it, before each micro-batch, counts too."""
        self.touch("ask")
        return stop()

    @contextmanager
    def laid(self) -> Iterator[Wire]:
        with ExitStack() as held:
            for name in CALLS:
                call = partial(self._call, name, getattr(os, name))
                held.enter_context(mock.patch.object(os, name, call))
            held.enter_context(mock.patch.object(builtins, "open", partial(self._open, open)))
            held.enter_context(mock.patch.object(io, "open", builtins.open))
            yield self

    def _call(self, name: str, real: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self.touch(name)
        return real(*given, **named)

    def _open(self, real: Any, file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        if not set(mode) & set("wax"):
            return real(file, mode, *given, **named)
        self.touch("open")
        raw = io.BufferedWriter(_Raw(self, file, mode.strip("bt")))
        return raw if "b" in mode else io.TextIOWrapper(raw, *given[1:], **named)


class _Raw(io.FileIO):
    """A file whose writes touch the wire: those that a flush or a close makes too."""

    def __init__(self, wire: Wire, file: Any, mode: str) -> None:
        super().__init__(file, mode)
        self._wire = wire

    def write(self, data: Any) -> int:
        self._wire.touch("write")
        return super().write(data) or 0

    def truncate(self, size: int | None = None) -> int:
        self._wire.touch("truncate")
        return super().truncate(size)


def spread(total: int, moments: int = 20) -> list[int]:
    """Return numbers from 1 to `total`, both included, evenly."""
    return [1 + i * (total - 1) // (moments - 1) for i in range(moments)]


def full_at(n: int, *, for_good: bool = False) -> Act:
    def act(at: int) -> None:
        if at == n or (for_good and at > n):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return act


def found(root: Path) -> dict[str, Found]:
    """Return what the cells of a directory have left, by name."""
    return {place.name: found_in(place) for place in sorted(root.iterdir()) if place.is_dir()}


def found_in(place: Path) -> Found:
    each = dataclasses.asdict(record.load(place))
    for name in ("seconds", "started", "ended", "peak_memory_bytes", "reproduce"):
        del each[name]
    del each["environment"]["isolation"]  # the tests' own process runs cells too
    weights = place / "checkpoint" / "weights.safetensors"
    return Found(
        sorted(path.name for path in place.iterdir()),
        (place / "metrics.jsonl").read_bytes(),
        weights.read_bytes(),
        each,
    )


def finished(root: Path) -> dict[Path, bytes]:
    """Return the files of the cells that have ended as results; nothing may change them."""
    places = [path.parent for path in root.glob("*/record.json")]
    done = [p for p in places if json.loads((p / "record.json").read_bytes())["state"] == "ok"]
    files = [path for p in done for path in p.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files if path.name != ".lock"}


def starts(root: Path) -> dict[str, int]:
    """Return how often each cell was started, by its log."""
    logs = {path.parent.name: path.read_text() for path in root.glob("*/log.txt")}
    return {name: text.count(" started: ") for name, text in logs.items()}


# Works: what a cell's process runs in place of `runner._in_process`, some arguments before.


def killed_at(
    moments: Mapping[str, int], marks: Path, cell: Cell, root: Path, known: str, *, stop: Any
) -> str:
    """Die once, before the cell's own n-th moment."""

    def die(at: int) -> None:
        if at == moments[cell.id]:
            os.kill(os.getpid(), signal.SIGKILL)

    return _once(die, marks, cell, root, known, stop)


def killing_at(n: int, marks: Path, cell: Cell, root: Path, known: str, *, stop: Any) -> str:
    """Kill the runner before the n-th moment, and wait for what follows from it."""

    def kill(at: int) -> None:
        parent = multiprocessing.parent_process()
        if at == n and parent is not None and parent.pid is not None:
            os.kill(parent.pid, signal.SIGKILL)
            signal.pause()

    return _once(kill, marks, cell, root, known, stop)


def stopping_at(n: int, marks: Path, cell: Cell, root: Path, known: str, *, stop: Any) -> str:
    """Stop like Ctrl-Z, once, before the n-th moment, and leave word who it is."""

    def halt(at: int) -> None:
        if at == n:
            (marks / "stopped").write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)

    return _once(halt, marks, cell, root, known, stop)


def full(size: int, cell: Cell, root: Path, known: str, *, stop: Any) -> str:
    """Run on a disk that takes no file of more than `size` bytes."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return run_cell(cell, root, stop=stop, known=known)


def _once(act: Act, marks: Path, cell: Cell, root: Path, known: str, stop: Any) -> str:
    mark = marks / f"{cell.id}.tried"
    if mark.exists():
        return run_cell(cell, root, stop=stop, known=known)
    mark.touch()
    with Wire(act).laid() as wire:
        return run_cell(cell, root, stop=partial(wire.asked, stop), known=known)


# Runners: a sweep in a process of its own, with cells from the server that the tests have warmed.


class Touching(Observer):
    """Counts what a sweep tells as moments of its runner."""

    def __init__(self, wire: Wire, halt: Path | None = None) -> None:
        self._wire, self._halt = wire, halt

    def started(self, cell: Cell, view: View) -> None:
        self._wire.touch("started")

    def ended(self, ended: Ended, view: View) -> None:
        self._wire.touch("ended")
        if self._halt is not None and not self._halt.exists():
            self._halt.touch()
            os.kill(os.getpid(), signal.SIGSTOP)

    def finish(self, view: View, interrupted: bool) -> None:
        self._wire.touch("finish")


def start(plan: Plan, *given: Any) -> BaseProcess:
    """Start a runner in a process of its own."""
    made = pool.context(runner.PRELOAD, start=True)
    process: BaseProcess = made.Process(target=_run, args=(plan, *given))  # type: ignore[attr-defined]
    process.start()
    return process


def _run(
    plan: Plan, die_at: int = 0, work: Any = None, gate: Any = None, halt: Path | None = None
) -> None:
    """Run a sweep, with a moment to die at, a gate to wait at, or a word on when it stops."""
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]
    pool._PAUSE = 0.05
    if work is not None:
        runner._in_process = work

    def die(at: int) -> None:
        if at == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    if gate is not None:
        gate.wait(60)
    with Wire(die).laid() as wire:
        sys.exit(run_sweep(plan, Touching(wire, halt)))
