"""Read a results directory. Nothing here imports torch or writes."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encoderkit.errors import StoreError
from encoderkit.sweep import lock, record
from encoderkit.sweep.record import Record

ROOT = Path("runs")
SWEEP_FILE = "sweep.json"
GONE = "its process is gone, and left no other word"


@dataclass(slots=True)
class Found:
    """The records of a directory, and what stands there that is none, each with its reason."""

    records: list[Record] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)


def records(directory: Path, planned: Collection[str] = ()) -> Found:
    """Read every record of a results directory, by directory name.

    A directory of one of the `planned` ids that has no record yet is not listed as malformed.
    Errors: StoreError when the directory cannot be read; a malformed record is only listed.
    """
    try:
        places = sorted(
            each for each in directory.iterdir() if each.is_dir() and not each.name.startswith(".")
        )
    except OSError as error:
        raise StoreError(
            f"{directory}: not a results directory: {error.strerror}. "
            "Give the directory of a sweep, or run one: encoderkit sweep norm=layernorm,rmsnorm"
        ) from error
    found = Found()
    kept: dict[str, tuple[str, Record]] = {}
    for place in sorted(places, key=lambda each: len(each.name)):  # a copy's name is longer
        try:
            each = read(place)
        except StoreError as error:
            waits = isinstance(error.__cause__, FileNotFoundError)
            if not (waits and place.name.rpartition("-")[2] in planned):
                found.malformed.append(str(error))
            continue
        if each.id in kept:
            found.malformed.append(f"{place}: a copy of {kept[each.id][0]}, which counts")
        else:
            kept[each.id] = place.name, each
    found.records = [each for _, each in sorted(kept.values(), key=lambda pair: pair[0])]
    found.malformed.sort()
    return found


def read(place: Path) -> Record:
    """Read one cell's record; a running one that no process holds any more reads as interrupted.

    Errors: StoreError as in `record.load`.
    """
    found = record.load(place)
    try:
        gone = found.state == record.RUNNING and lock.is_free(place)
    except OSError as error:
        raise StoreError(f"{place}: nobody can say whether it runs: {error}") from error
    if gone:
        found.state = record.INTERRUPTED
        found.reason = GONE
    return found


def sweep(directory: Path) -> dict[str, Any] | None:
    """Read the plan that `directory` was run from; none where no sweep was planned.

    Errors: StoreError when the file is there and cannot be read.
    """
    path = directory / SWEEP_FILE
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path}: not a plan: {error}. Run the sweep again.") from error
    if not isinstance(found, dict) or found.get("schema") != record.SCHEMA:
        raise StoreError(f"{path}: not a plan of schema {record.SCHEMA}. Run the sweep again.")
    cells = found.get("cells")
    named = isinstance(cells, list) and all(isinstance(c, dict) and "id" in c for c in cells)
    baseline, merged = found.get("baseline"), found.get("merged", {})
    if not named or not isinstance(baseline, str) or not isinstance(merged, dict):
        raise StoreError(f"{path}: a plan without its cells or its baseline. Run the sweep again.")
    return found


def newest_sweep(root: Path = ROOT) -> Path:
    """Return the directory of the sweep that was planned last, below `root`; none is hidden.

    Errors: StoreError when there is none.
    """
    plans = [
        (path.stat().st_mtime_ns, path)
        for path in root.rglob(SWEEP_FILE)
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]
    if not plans:
        raise StoreError(
            f"{root}: no sweep below it. Run one: encoderkit sweep norm=layernorm,rmsnorm seeds=3"
        )
    return max(plans)[1].parent
