"""One process at a time in a cell's directory: the system drops the lock when its holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE = ".lock"
_POLL = 0.05  # seconds between two tries


@contextmanager
def hold(directory: Path, wait: float) -> Iterator[bool]:
    """Hold the directory's lock, and say whether it was got within `wait` seconds.

    Errors: OSError when the lock file cannot be opened.
    """
    handle = os.open(directory / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        mine = _lock(handle, wait)
        if mine:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield mine
    finally:
        os.close(handle)


def is_free(directory: Path) -> bool:
    """Say whether nobody runs in `directory`. Errors: OSError."""
    try:
        handle = os.open(directory / FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return _lock(handle, 0.0)
    finally:
        os.close(handle)


def _lock(handle: int, wait: float) -> bool:
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL)
