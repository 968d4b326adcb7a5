"""Processes for work: one each, from a warm server that has imported torch and computed nothing."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from encoderkit.errors import StoreError
from encoderkit.sweep import child
from encoderkit.sweep.asked import Asked, listen

AGAIN = "again"  # what a function returns that wants to be called again later
_PAUSE = 1.0  # seconds until then
_TRIES = 20  # to start a process, a tick apart
_UNKNOWN = 255  # the exit code that multiprocessing gives where the server has died
_TICK = 0.1  # seconds between two looks at clocks and signals


@dataclass(frozen=True, slots=True)
class Work:
    """A function for a process of its own, called as `function(*arguments, stop=...)`."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    log: Path


@dataclass(frozen=True, slots=True)
class Ending:
    """How a piece of work ended: with a value, or by `cause`.

    The causes are raised, died, timeout, interrupted; orphaned is a process that was lost sight of
    because the server that had forked it died.
    """

    value: Any
    seconds: float
    cause: str = ""
    words: str = ""


class Events:
    """What a pool tells; this one does not listen."""

    def started(self, work: Work) -> None:
        """A process was started."""

    def ended(self, work: Work, ending: Ending) -> Work | None:
        """A process is gone; return the work that is to be done now in its place, if any."""
        return None

    def enough(self) -> bool:
        """Return whether to stop what runs, in order, and to start nothing more."""
        return False

    def postponed(self, work: Work) -> None:
        """The work asked to be called again later."""

    def tick(self) -> None:
        """Some time has passed."""


@dataclass(slots=True)
class _Child:
    work: Work
    process: BaseProcess
    answer: Connection
    began: float = field(default_factory=time.monotonic)
    cause: str = ""
    over: float | None = None  # when its work was seen to be over

    def end(self, cause: str, *, at_once: bool) -> None:
        """Order the process to end, or kill it; the first cause stands."""
        self.cause = self.cause or cause
        if at_once:
            self.process.kill()
            self.clear()
        else:
            self.process.terminate()

    def clear(self) -> None:
        """Kill what the process started, or itself where its server died and lost sight of it."""
        if self.process.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # the latter on macOS
                os.killpg(self.process.pid, signal.SIGKILL)

    def lingers(self, patience: float) -> bool:
        """Tell whether the process is still there so long after its work: a thread may hold it."""
        if self.over is None and self.answer.poll():
            self.over = time.monotonic()
        return self.over is not None and time.monotonic() - self.over > patience

    def ending(self) -> Ending:
        """Return how the process, which is gone, ended."""
        self.process.join()
        seconds = time.monotonic() - self.began
        try:
            value = self.answer.recv() if self.answer.poll() else None
        except Exception:  # a part may have written anything on the pipe, or half of an answer
            value = None
        self.answer.close()
        if value is None and self.process.exitcode == _UNKNOWN and _lives(self.process.pid):
            self.cause = self.cause or "orphaned"
        self.clear()
        if isinstance(value, child.Raised):
            return Ending(None, seconds, self.cause or "raised", value.words)
        if value is not None:
            return Ending(value, seconds)
        words = "the server that its process came from is gone"
        if self.cause != "orphaned":
            words = _last_words(self.process.exitcode or 0)
        return Ending(None, seconds, self.cause or "died", words)


@dataclass(slots=True)
class Pool:
    """Runs pieces of work, `jobs` at once; `preload` names the modules of the warm server.

    Seconds and bytes; `memory` is what a process may allocate.
    """

    jobs: int
    timeout: float | None = None
    memory: int | None = None
    grace: float = 20.0  # seconds between the order to stop and the kill
    patience: float = 5.0  # seconds between the end of the work and the kill
    preload: Sequence[str] = ()

    def run(self, works: Sequence[Work], events: Events) -> bool:
        """Run all of it, and return whether Ctrl-C cut it short.

        The first Ctrl-C orders what runs to stop, the second kills it; so do SIGTERM and a terminal
        that goes away.

        Errors: StoreError when no process can be started.
        """
        session = _Session(self, context(self.preload), deque(works), events)
        with listen(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as asked:
            try:
                while session.busy:
                    session.step(asked)
            finally:
                session.kill()
            return asked.count > 0


@dataclass(slots=True)
class _Session:
    """One call of `Pool.run`."""

    pool: Pool
    context: BaseContext
    queue: deque[Work]
    events: Events
    later: list[tuple[float, Work]] = field(default_factory=list)
    running: list[_Child] = field(default_factory=list)
    _stopping: float | None = None

    @property
    def busy(self) -> bool:
        return bool(self.queue or self.later or self.running)

    def step(self, asked: Asked) -> None:
        """Start what can start, wait a little, and see who has ended."""
        if asked.count or self.events.enough():
            self._interrupt(at_once=asked.count > 1)
        due = [work for when, work in self.later if when <= time.monotonic()]
        self.later = [(when, work) for when, work in self.later if work not in due]
        self.queue.extend(due)
        while self.queue and len(self.running) < self.pool.jobs:
            self._start(self.queue.popleft())
        gone = set(wait([c.process.sentinel for c in self.running], _TICK))
        if not self.running:
            time.sleep(_TICK)
        for each in [c for c in self.running if c.process.sentinel in gone]:
            self._collect(each)
        self._time_out()
        self.events.tick()

    def kill(self) -> None:
        """Leave no process behind, whatever happened."""
        for each in self.running:
            each.end("interrupted", at_once=True)
            each.process.join()

    def _start(self, work: Work) -> None:
        answer, sender = self.context.Pipe(duplex=False)
        parcel = pickle.dumps((work.function, work.arguments))
        arguments = (work.log, parcel, sender, self.pool.memory)
        for left in reversed(range(_TRIES)):
            # The context's type does not say so, but each has its Process.
            process = self.context.Process(  # type: ignore[attr-defined]
                target=child.main, args=arguments, name=work.name
            )
            try:
                process.start()
                break
            except (ConnectionError, EOFError) as error:  # the server died just now
                if not left:
                    raise _unable(error) from error
                time.sleep(_TICK)  # a new one is started
            except OSError as error:
                raise _unable(error) from error
        sender.close()
        self.running.append(_Child(work, process, answer))
        self.events.started(work)

    def _collect(self, each: _Child) -> None:
        self.running.remove(each)
        ending = each.ending()
        if ending.value == AGAIN:
            self.later.append((time.monotonic() + _PAUSE, each.work))
            self.events.postponed(each.work)
        elif (more := self.events.ended(each.work, ending)) and self._stopping is None:
            self.queue.appendleft(more)

    def _time_out(self) -> None:
        limit = self.pool.timeout
        for each in self.running:
            if limit is not None and time.monotonic() - each.began > limit:
                each.end("timeout", at_once=True)
            if each.lingers(self.pool.patience):
                each.end("", at_once=True)

    def _interrupt(self, *, at_once: bool) -> None:
        self.queue.clear()
        self.later.clear()
        if self._stopping is None:
            self._stopping = time.monotonic()
            for each in self.running:
                each.end("interrupted", at_once=False)
        if at_once or time.monotonic() - self._stopping > self.pool.grace:
            for each in self.running:
                each.end("interrupted", at_once=True)


def _lives(pid: int | None) -> bool:
    try:
        os.kill(pid or 0, 0)
    except OSError:
        return False
    return bool(pid)


def context(preload: Sequence[str], *, start: bool = False) -> BaseContext:
    """Return the way processes are made here: forks of a server with the modules, else spawning.

    `start` starts the server now; its first fork does so otherwise. Errors: StoreError.
    """
    _stand_firm()
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(list(preload))
    if start:
        try:
            forkserver.ensure_running()
        except OSError as error:
            raise _unable(error) from error
    return found


def _unable(error: Exception) -> StoreError:
    """Return the error of a system that has no room for one more process."""
    return StoreError(
        f"no process can be started: {getattr(error, 'strerror', None) or error}. "
        "Try jobs=1, `ulimit -n 1024`, or TMPDIR=/tmp."
    )


def _stand_firm() -> None:
    """Open what is closed of stdin, stdout and stderr: a pipe must not get one of their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free


def _last_words(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    return f"its process was killed by signal {-code}{name}"
