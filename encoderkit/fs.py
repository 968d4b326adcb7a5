"""The one seam through which results reach the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data` so that a crash at any moment leaves the old file or the new one.

    Errors: OSError, with the temporary file removed and the old file intact.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write(temporary, data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def clear_temporaries(directory: Path) -> None:
    """Remove what killed writers left in a directory that nobody else writes to.

    Errors: OSError.
    """
    for path in directory.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make a rename or a new file in `path` survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_directory(path: Path, files: Mapping[str, bytes]) -> None:
    """Replace directory `path` by one that holds `files`.

    After a crash at any moment, `recover_directory` leaves the old directory or the new one, whole.
    Errors: OSError, with what was written removed and the old directory intact.
    """
    recover_directory(path)
    fresh, old = _beside(path, "new"), _beside(path, "old")
    try:
        fresh.mkdir()
        for name, data in files.items():
            _write(fresh / name, data)
        sync_directory(fresh)
        if path.exists():
            os.replace(path, old)
        os.replace(fresh, path)
    except BaseException:
        recover_directory(path)
        raise
    sync_directory(path.parent)
    recover_directory(path)


def remove_directory(path: Path) -> None:
    """Remove directory `path` so that a crash at any moment leaves it whole or not at all.

    Errors: OSError.
    """
    recover_directory(path)
    if path.exists():
        os.replace(path, _beside(path, "new"))
        shutil.rmtree(_beside(path, "new"))


def recover_directory(path: Path) -> None:
    """Finish or undo what was cut short, replacing or removing, and clear away what it left."""
    old = _beside(path, "old")
    if old.exists() and not path.exists():
        os.replace(old, path)
    for left in (_beside(path, "new"), old):
        shutil.rmtree(left, ignore_errors=True)


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}.{suffix}")
