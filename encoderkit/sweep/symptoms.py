"""What is wrong in one run's directory. Nothing here imports torch or writes."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from encoderkit.errors import CheckpointError, StoreError
from encoderkit.sweep import lock, record
from encoderkit.sweep.record import Record
from encoderkit.sweep.run import CONFIG_FILE, LOG_FILE
from encoderkit.train import manifest
from encoderkit.train.metrics import read_metrics

METRICS_FILE = "metrics.jsonl"
NEW, OLD = f".{manifest.DIRECTORY}.new", f".{manifest.DIRECTORY}.old"  # of fs.replace_directory
TEMPORARY = re.compile(r"\.(.+)\.(\d+)\.tmp")  # of fs.write_atomic: the file's name, the process

_FILES = frozenset({record.FILE, CONFIG_FILE, LOG_FILE, METRICS_FILE, lock.FILE})
_KEPT = f"{manifest.DIRECTORY}-"  # checkpoints that run.keep kept beside the last
_EARLY = frozenset({CONFIG_FILE, LOG_FILE, lock.FILE})  # what stands there before the record
_ANEW = "the next sweep runs the cell anew"


class Cure(enum.Enum):
    """What can be done about a finding without losing anything."""

    NONE = "leaves it"
    MOVE = "moves it into .doctor/"
    RESTORE = "puts it back as checkpoint"
    CLOSE = "closes the record as interrupted"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as a sweep leaves it; a mere note is no fault."""

    kind: str
    path: Path
    what: str
    means: str
    cure: Cure = Cure.MOVE
    note: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """What one must know beside a run's directory: the plan's ids, if any, and who has which id."""

    planned: frozenset[str] | None
    keepers: dict[str, str]


def identity(name: str) -> str:
    """Return the id that a run's directory has in its name, or nothing when it is none."""
    found = re.fullmatch(r".+-([0-9a-f]{12})", name, re.DOTALL)
    return found.group(1) if found else ""


def symptoms(place: Path, known: Known) -> list[Finding]:
    """Return what is wrong in a run's directory that no process holds."""
    try:
        found = record.load(place)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return _unrecorded(place, known)
        return [_bad_record(place, known, error)]
    if known.keepers.get(found.id, place.name) != place.name:
        what = f"a second directory of run {found.id}, beside {known.keepers[found.id]}"
        return [Finding("copied", place, what, "it does not count")]
    kept = list(_checkpoint(place, found))
    about = _about(place, found)
    if cause := _damage(place, found, about):
        return [Finding("damaged", place, f"a run whose {cause}", _ANEW)]
    return [*kept, *_strays(place), *_record(place, found, known)]


def _unrecorded(place: Path, known: Known) -> list[Finding]:
    """Return what a directory without a record is: about to run, or what is left of a run."""
    names = {each.name for each in place.iterdir() if not TEMPORARY.fullmatch(each.name)}
    if names - _EARLY:
        what = f"a run without {record.FILE}"
        return [Finding("half-written", place, what, f"nobody can say what it is; {_ANEW}")]
    strays = list(_strays(place))
    if known.planned is not None and identity(place.name) not in known.planned:
        what, means = "a directory for a run that is in no plan", "nothing has run in it"
        strays.append(Finding("unplanned", place, what, means, Cure.NONE, note=True))
    return strays


def _bad_record(place: Path, known: Known, error: StoreError) -> Finding:
    path = place / record.FILE
    claimed = _claimed(path)
    if claimed and not place.name.endswith(claimed):
        what = f"the record of run {claimed} in a directory of another name"
        if claimed in known.keepers:
            return Finding("copied", place, what, f"{known.keepers[claimed]} is that run")
        return Finding("moved", place, what, f"it does not count; {_ANEW}")
    if path.is_file() and path.stat().st_size == 0:
        return Finding("zero-byte", place, f"a run with an empty {record.FILE}", _ANEW)
    cause = str(error).removeprefix(f"{path}: ").rstrip(".")
    return Finding("damaged", place, f"a run whose {record.FILE} is {cause}", _ANEW)


def _claimed(path: Path) -> str:
    """Return the id in a file that may be a record."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return ""
    name = found.get("id") if isinstance(found, dict) else None
    return name if isinstance(name, str) and re.fullmatch(r"[0-9a-f]{12}", name) else ""


def _standing(place: Path) -> Path:
    """Return the checkpoint that the next start would take up."""
    whole, old = place / manifest.DIRECTORY, place / OLD
    return old if old.exists() and not whole.exists() else whole


def _about(place: Path, found: Record) -> dict[str, Any]:
    """Return what the run's checkpoint says of it; nothing where there is none of this run."""
    try:
        about = manifest.verify(_standing(place))
    except CheckpointError:
        return {}
    return about if about.get("identity") == found.id else {}


def _checkpoint(place: Path, found: Record) -> Iterator[Finding]:
    """Yield what is wrong with the checkpoint, and what is left of replacing it."""
    standing = _standing(place)
    if standing.exists():
        if cause := _unfit(standing, found):
            means = "its results stand, its weights are lost" if found.done else _ANEW
            yield Finding("damaged", standing, f"a checkpoint that does not load: {cause}", means)
        elif standing.name == OLD:
            what = "the checkpoint, set aside while a new one was to take its place"
            yield Finding("half-written", standing, what, "the run goes on from it", Cure.RESTORE)
    for each in sorted(place.glob(f"{_KEPT}*")):
        if cause := _unfit(each, found):
            what = f"a checkpoint that was kept, and does not load: {cause}"
            yield Finding("damaged", each, what, "no run goes on from it")
    for name, what in (
        (NEW, "a checkpoint whose writing was cut short"),
        (OLD, "a checkpoint that a newer one has replaced"),
    ):
        if (place / name).exists() and place / name != standing:
            yield Finding("half-written", place / name, what, "nobody reads it")


def _unfit(path: Path, found: Record) -> str:
    """Return in words why a checkpoint does not load as one of this run, or nothing."""
    try:
        owner = manifest.verify(path).get("identity")
    except CheckpointError as error:
        return str(error).partition(" Remove ")[0].removeprefix(f"{path}/").rstrip(".")
    return "" if owner == found.id else f"it is of run {owner}"


def _damage(place: Path, found: Record, about: dict[str, Any]) -> str:
    """Return in words which file of the run cannot be what it wrote."""
    path, least = place / METRICS_FILE, about.get("metrics_bytes", 0)
    wanted = least > 0 or (found.done and found.steps > 0)
    try:
        size = path.stat().st_size if wanted or path.exists() else 0
        if wanted and size == 0:
            return f"{METRICS_FILE} is empty"
        if size < least:
            return f"{METRICS_FILE} has {size} bytes, and had {least}"
        if size:
            for _ in read_metrics(path):
                pass
        if found.done and size and not path.read_bytes().endswith(b"\n"):
            return f"{METRICS_FILE} ends within a line"
    except (OSError, StoreError, RecursionError) as error:
        return f"{METRICS_FILE} cannot be read: {str(error).removeprefix(f'{path}, ')}"
    return _bad_config(place / CONFIG_FILE) if found.done else ""


def _bad_config(path: Path) -> str:
    try:
        tree = yaml.safe_load(path.read_bytes())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        return f"{path.name} cannot be read: {' '.join(str(error).split())[:100]}"
    return "" if isinstance(tree, dict) and "schema" in tree else f"{path.name} holds none"


def _strays(place: Path) -> Iterator[Finding]:
    """Yield the files in a run's directory that no run writes, or did not finish writing."""
    own = {manifest.DIRECTORY, NEW, OLD}
    inside = {manifest.FILE, manifest.WEIGHTS, manifest.STATE}
    for each in sorted(place.iterdir()):
        if TEMPORARY.fullmatch(each.name):
            yield half_written(each)
        elif each.name in _FILES and not each.is_file():
            yield Finding("foreign", each, "no file, where a run has one", "a run fails over it")
        elif each.name not in own | _FILES and not each.name.startswith(_KEPT):
            yield foreign(each)
    checkpoint = place / manifest.DIRECTORY
    for each in sorted(checkpoint.iterdir()) if checkpoint.is_dir() else ():
        if each.name not in inside:
            what = "what no run writes into a checkpoint"
            yield Finding("foreign", each, what, "the next checkpoint would remove it")


def half_written(path: Path) -> Finding:
    """Return the finding of a temporary file of an atomic write."""
    what = "a temporary file whose writing was cut short"
    return Finding("half-written", path, what, "the file it was to replace is intact")


def foreign(path: Path) -> Finding:
    """Return the finding of something that no run writes."""
    kind = "zero-byte" if path.is_file() and path.stat().st_size == 0 else "foreign"
    return Finding(kind, path, "what no run writes", "nobody reads it")


def _record(place: Path, found: Record, known: Known) -> Iterator[Finding]:
    if found.state == record.RUNNING:
        what, means = "a run whose process is gone without a word", "the next sweep goes on with it"
        yield Finding("left behind", place, what, means, Cure.CLOSE)
    if known.planned is not None and found.id not in known.planned:
        what, means = f"a run that is in no plan: {found.label}", "it stays, and is not compared"
        yield Finding("unplanned", place, what, means, Cure.NONE, note=True)
