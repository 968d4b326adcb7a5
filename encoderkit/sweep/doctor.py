"""Look over a results directory, and put right what can be put right without losing anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from encoderkit.errors import Fault, StoreError
from encoderkit.fs import sync_directory
from encoderkit.sweep import lock, record, store
from encoderkit.sweep.symptoms import (
    TEMPORARY,
    Cure,
    Finding,
    Known,
    foreign,
    half_written,
    identity,
    symptoms,
)
from encoderkit.train import manifest

WARD = ".doctor"  # where things are moved, below the results directory


@dataclass(slots=True)
class Examination:
    """What was found in a results directory, and which runs were left alone as a process has them.

    `done` says what was done about findings, by their place in the list; `failed` what could not.
    """

    directory: Path
    findings: list[Finding] = field(default_factory=list)
    held: list[Path] = field(default_factory=list)
    done: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def well(self) -> bool:
        """Whether no fault is left."""
        return all(each.note or n in self.done for n, each in enumerate(self.findings))

    def content(self) -> dict[str, Any]:
        """Return everything as plain data, with paths relative to the directory."""
        listed = [
            {
                "kind": each.kind,
                "path": str(each.path.relative_to(self.directory)),
                "what": each.what,
                "means": each.means,
                "repair": each.cure.value,
                "note": each.note,
                "done": self.done.get(n),
                "failed": self.failed.get(n),
            }
            for n, each in enumerate(self.findings)
        ]
        held = [str(each.relative_to(self.directory)) for each in self.held]
        content = {"directory": str(self.directory), "findings": listed, "held": held}
        return {"schema": record.SCHEMA, "well": self.well, **content}


def examine(directory: Path) -> Examination:
    """Look over a results directory; nothing is written.

    Errors: StoreError when it is none.
    """
    known = _known(directory)
    seen = Examination(directory, _plan(directory))
    for place in _entries(directory):
        _look(place, known, seen)
    return seen


def repair(directory: Path) -> Examination:
    """Look over a results directory and do what loses nothing; what a process holds is left alone.

    Damaged and foreign things are moved, under their relative path, into a directory of their own
    in .doctor/; nothing is deleted.

    Errors: StoreError when it is no results directory.
    """
    known = _known(directory)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    ward = directory / WARD / stamp
    seen = Examination(directory, _plan(directory))
    _treat(seen, 0, ward)
    for place in _entries(directory):
        look = Examination(directory)
        _look(place, known, look)
        if look.findings:
            _mend(place, known, seen, look, ward)
        else:
            seen.held += look.held
    return seen


def _mend(place: Path, known: Known, seen: Examination, look: Examination, ward: Path) -> None:
    """Treat one entry of a results directory under its lock, unless a process has it by now."""
    begin = len(seen.findings)
    try:
        with _holding(place) as mine:
            if not mine:
                seen.held.append(place)
                return
            seen.findings += _of(place, known)  # again, since a process may have been there
            _treat(seen, begin, ward)
    except OSError as error:  # the lock cannot be taken
        seen.findings[begin:] = look.findings
        seen.failed |= {n: str(error) for n in range(begin, len(seen.findings))}


def _known(directory: Path) -> Known:
    """Return the plan's ids, and which directory has which run; refuse what holds no results."""
    places = _entries(directory)
    if not (directory / store.SWEEP_FILE).exists() and not any(map(_is_run, places)):
        raise StoreError(str(Fault(str(directory), "holds no sweep and no run.", _HINT)))
    try:
        plan = store.sweep(directory)
    except StoreError:
        plan = None
    names = {f"{cell.get('slug')}-{cell['id']}" for cell in plan["cells"]} if plan else set()
    # Of a run and its copies the planned name counts, else the shortest.
    order = sorted(places, key=lambda each: (each.name not in names, len(each.name)))
    keepers: dict[str, str] = {}
    for place in order:
        try:
            keepers.setdefault(record.load(place).id, place.name)
        except StoreError:
            continue
    planned = frozenset(str(cell["id"]) for cell in plan["cells"]) if plan else None
    return Known(planned, keepers)


_HINT = "Give the directory of a sweep, such as runs/NAME; `encoderkit sweep` prints it."


def _entries(directory: Path) -> list[Path]:
    """Return what a results directory holds; hidden things are nobody's, but temporary files.

    Errors: StoreError when it cannot be read.
    """
    try:
        found = sorted(directory.iterdir())
    except OSError as error:
        fault = Fault(str(directory), f"is no directory of results: {error.strerror}.", _HINT)
        raise StoreError(str(fault)) from error
    seen = [p for p in found if not p.name.startswith(".") or TEMPORARY.fullmatch(p.name)]
    return [each for each in seen if each.name != store.SWEEP_FILE]


def _is_run(place: Path) -> bool:
    return place.is_dir() and (bool(identity(place.name)) or (place / record.FILE).exists())


def _plan(directory: Path) -> list[Finding]:
    """Return what is wrong with the plan of a directory."""
    path = directory / store.SWEEP_FILE
    means = "compare and status do without; the same sweep again writes it"
    try:
        found = store.sweep(directory)
    except StoreError as error:
        if path.is_file() and path.stat().st_size == 0:
            return [Finding("zero-byte", path, "an empty plan", means)]
        cause = str(error).removeprefix(f"{path}: ").partition(". Run the sweep")[0]
        return [Finding("damaged", path, f"a plan that does not load: {cause}", means)]
    if found is None and any(map(_was_planned, _entries(directory))):
        return [Finding("missing", path, "no plan, beside runs of a sweep", means, Cure.NONE)]
    return []


def _was_planned(place: Path) -> bool:
    try:
        return bool(record.load(place).against)
    except StoreError:
        return False


def _look(place: Path, known: Known, seen: Examination) -> None:
    """Add what is wrong with one entry of a results directory, unless a process holds it."""
    try:
        free = not place.is_dir() or lock.is_free(place)
        found = _of(place, known) if free else []
        # A process may have come meanwhile, and what it was about to do is no fault.
        if not free or (found and place.is_dir() and not lock.is_free(place)):
            seen.held.append(place)
        else:
            seen.findings += found
    except FileNotFoundError:
        return  # gone since the directory was listed
    except OSError as error:
        what = f"what cannot be looked at: {error.strerror}"
        means = "nobody can say whether it runs"
        seen.findings.append(Finding("unreadable", place, what, means, Cure.NONE))


def _of(place: Path, known: Known) -> list[Finding]:
    if _is_run(place):
        return symptoms(place, known)
    if place.is_dir() and any(
        each for name in (store.SWEEP_FILE, record.FILE) for each in place.rglob(name)
    ):
        what, means = "a directory of results of its own", "give it to doctor too"
        return [Finding("nested", place, what, means, Cure.NONE, note=True)]
    if part := TEMPORARY.fullmatch(place.name):
        return [] if _lives(int(part.group(2))) else [half_written(place)]
    return [foreign(place)]


def _lives(process: int) -> bool:
    """Say whether a process is there, so that it may still be writing."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def _holding(place: Path) -> Iterator[bool]:
    """Hold the lock of a run's directory; of other things there is none to hold."""
    if not _is_run(place):
        yield True
        return
    with lock.hold(place, 0) as mine:
        yield mine


def _treat(seen: Examination, begin: int, ward: Path) -> None:
    """Do what can be done about the findings from `begin` on."""
    for n, each in enumerate(seen.findings[begin:], begin):
        if each.cure is Cure.NONE:
            continue
        try:
            seen.done[n] = _CURES[each.cure](each.path, seen.directory, ward)
        except (OSError, StoreError) as error:
            seen.failed[n] = str(error)


def _move(path: Path, directory: Path, ward: Path) -> str:
    relative = path.relative_to(directory)
    target = ward / relative
    target.parent.mkdir(parents=True, exist_ok=True)
    os.rename(path, target)
    sync_directory(target.parent)
    sync_directory(path.parent)
    return f"moved to {target.relative_to(directory)}"


def _restore(path: Path, directory: Path, ward: Path) -> str:
    os.rename(path, path.with_name(manifest.DIRECTORY))
    sync_directory(path.parent)
    return "put back"


def _close(path: Path, directory: Path, ward: Path) -> str:
    found = record.load(path)
    found.state, found.reason, found.ended = record.INTERRUPTED, store.GONE, record.now()
    record.save(found, path)
    return "closed as interrupted"


_CURES = {Cure.MOVE: _move, Cure.RESTORE: _restore, Cure.CLOSE: _close}
