"""One process at a time in a cell's directory: the system drops the lock when its holder dies.

The lock is on a file and, where the file system can, on the directory too: people delete lock files
that look forgotten.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

FILE = ".lock"
_POLL = 0.05  # seconds between two tries
_OPEN: set[int] = set()  # handles of this process; what it forks must not hold on to its locks


@contextmanager
def hold(directory: Path, wait: float) -> Iterator[bool]:
    """Hold the directory's lock, and say whether it was got within `wait` seconds.

    Errors: OSError when the lock file cannot be opened.
    """
    with ExitStack() as opened:
        place = _open(opened, directory, os.O_RDONLY)
        file = _open(opened, directory / FILE, os.O_RDWR | os.O_CREAT)
        end = time.monotonic() + wait
        while not (mine := _lock(file, fcntl.LOCK_EX) and _lock(place, fcntl.LOCK_EX)):
            fcntl.flock(file, fcntl.LOCK_UN)  # between two tries, or two would block each other
            if time.monotonic() >= end:
                break
            time.sleep(_POLL)
        if mine:
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield mine


@contextmanager
def attend(directory: Path) -> Iterator[None]:
    """Be one of those who run a sweep in `directory`, for others to see where that can be."""
    with ExitStack() as opened:
        with suppress(OSError):
            _lock(_open(opened, directory, os.O_RDONLY), fcntl.LOCK_SH)
        yield


def attended(directory: Path) -> bool:
    """Say whether somebody runs a sweep in `directory`, as far as can be seen."""
    with ExitStack() as opened, suppress(OSError):
        return not _lock(_open(opened, directory, os.O_RDONLY), fcntl.LOCK_EX)
    return False


def is_free(directory: Path) -> bool:
    """Say whether nobody runs in `directory`. Errors: OSError."""
    with ExitStack() as opened:
        found = [_open(opened, directory, os.O_RDONLY)]
        if (directory / FILE).exists():
            found.append(_open(opened, directory / FILE, os.O_RDONLY))
        # Shared: NFS grants no other lock to a reader, and two who look do not see each other.
        return all(_lock(handle, fcntl.LOCK_SH) for handle in found)


def _open(opened: ExitStack, path: Path, flags: int) -> int:
    handle = os.open(path, flags | os.O_CLOEXEC, 0o644)
    _OPEN.add(handle)
    opened.callback(_close, handle)
    return handle


def _close(handle: int) -> None:
    if handle in _OPEN:
        _OPEN.remove(handle)
        os.close(handle)


def _let_go() -> None:
    for handle in list(_OPEN):
        _close(handle)


os.register_at_fork(after_in_child=_let_go)


def _lock(handle: int, kind: int) -> bool:
    """Lock at once, and say whether nobody else holds it. Errors: OSError."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno != errno.EBADF:  # a directory on NFS, beside which the file is locked
            raise
    return True
