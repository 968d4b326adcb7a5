"""The inside of a cell's process: its log, its signals, its end."""

from __future__ import annotations

import faulthandler
import fcntl
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path

from encoderkit.sweep.asked import Asked


@dataclass(frozen=True, slots=True)
class Raised:
    """What a process answers whose function raised, in words: the log may be on a full disk."""

    words: str


def main(log: Path, work: bytes, answer: Connection, memory: int | None = None) -> None:
    """Run a pickled (function, arguments) with all output in `log`, and send what it returns.

    The function gets `stop=`, which returns why to stop, or an empty string. Ctrl-C reaches the
    whole terminal, and is the runner's to hear; SIGTERM is the runner's word to stop. `memory` is
    how many bytes the process may allocate: more is an error inside it.
    """
    _die_with_the_runner()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked = Asked()
    signal.signal(signal.SIGTERM, asked.hear)
    try:
        _redirect(log)
        if memory is not None:
            _limit(memory)
    except OSError as error:
        answer.send(Raised(str(error)))
        return
    function, arguments = pickle.loads(work)
    try:
        answer.send(function(*arguments, stop=asked))
    except Exception as error:
        answer.send(Raised(f"{type(error).__name__}: {error}"))
        raise
    finally:
        answer.close()


def _redirect(log: Path) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        os.dup2(handle, number)
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    os.close(handle)
    faulthandler.enable()


def _limit(memory: int) -> None:
    """Limit what may be allocated. Errors: OSError when the process is under a tighter limit."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY and memory > most:
        raise OSError(f"sweep.memory={memory / 2**30:g} is above the limit of {most / 2**30:g} GiB")
    # Data alone: the address space of an idle torch is larger than any sensible limit.
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def _die_with_the_runner() -> None:
    """End this process and what it starts, whatever they do, as soon as the runner is gone.

    The pipe behind a parent's sentinel has its other end in the runner alone.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    os.setpgid(0, 0)
    if sys.platform == "linux":
        # Linux itself kills then: C code may keep the interpreter, and its threads, for ever.
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(parent.sentinel, fcntl.F_GETFL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)

    def watch() -> None:
        wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
