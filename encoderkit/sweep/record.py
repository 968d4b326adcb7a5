"""A run's record: everything about it but its curves, as strict JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from encoderkit.errors import StoreError
from encoderkit.fs import write_atomic

SCHEMA = 1
FILE = "record.json"

RESULTS = frozenset({"ok", "stalled", "nonfinite", "spiked"})  # ended by itself: never run again
COUNTED = RESULTS - {"nonfinite"}  # their numbers may be the best, and have a mean
FAILURES = frozenset({"error", "killed", "timeout"})
INTERRUPTED = "interrupted"
RUNNING = "running"
STATES = RESULTS | FAILURES | {INTERRUPTED, RUNNING}


@dataclass(slots=True, kw_only=True)
class Record:
    """What is known of one run. Bytes, seconds (monotonic), UTC stamps; unknown is null."""

    schema: int = SCHEMA
    id: str
    label: str
    overrides: list[str]
    state: str = RUNNING
    reason: str = ""
    traceback: str = ""
    seeds: dict[str, int]
    parts: dict[str, Any] = field(default_factory=dict)
    budget: dict[str, int] = field(default_factory=dict)
    data_hash: str = ""
    task: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    flops_per_token: float | None = None
    against: dict[str, Any] = field(default_factory=dict)
    decay_groups: dict[str, list[str]] = field(default_factory=dict)
    slots: list[dict[str, Any]] = field(default_factory=list)
    coverage: dict[str, list[int]] = field(default_factory=dict)
    tokens: int = 0
    steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    started: str
    ended: str | None = None
    reproduce: str

    @property
    def tokens_per_second(self) -> float | None:
        """While it trained; None where its numbers do not count."""
        seconds = self.seconds.get("train")
        return self.tokens / seconds if seconds and self.state in COUNTED else None

    @property
    def task_name(self) -> str:
        """The task's name, or nothing where the record has none."""
        part = self.parts.get("task")
        return str(part.get("part", "")) if isinstance(part, dict) else ""

    @property
    def done(self) -> bool:
        """Whether the run ended by itself, so that it is never run again."""
        return self.state in RESULTS


def now() -> str:
    """Return the time as a UTC stamp, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def strict(value: Any) -> Any:
    """Return `value` with every number that JSON cannot say as null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(name): strict(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [strict(inner) for inner in value]
    return value


def dump(value: Any) -> bytes:
    """Return `value` as readable strict JSON."""
    return (json.dumps(strict(value), indent=2, allow_nan=False) + "\n").encode()


def save(record: Record, directory: Path) -> None:
    """Write the record of `directory` atomically. Errors: OSError."""
    write_atomic(directory / FILE, dump(dataclasses.asdict(record)))


def load(directory: Path) -> Record:
    """Read the record of `directory`.

    Errors: StoreError that names the file and what is wrong with it.
    """
    path = directory / FILE
    try:
        found = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
        return _record(found, directory)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"{path}: not a record: {_words(error)}.") from error


def _record(found: Any, directory: Path) -> Record:
    if not isinstance(found, dict):
        raise ValueError("it holds no mapping")
    if found.get("schema") != SCHEMA:
        raise ValueError(f"schema {found.get('schema')!r}, and this encoderkit reads {SCHEMA}")
    known = {each.name for each in dataclasses.fields(Record)}
    record = Record(**{name: value for name, value in found.items() if name in known})
    if record.state not in STATES:
        raise ValueError(f"state {record.state!r} is none of {', '.join(sorted(STATES))}")
    hints = get_type_hints(Record)
    wrong = [name for name, hint in hints.items() if not _fits(getattr(record, name), hint)]
    wrong += [] if _fits(record.seeds.get("seed") if not wrong else 0, int) else ["seeds.seed"]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: not of the kind that a record holds")
    if not directory.name.endswith(str(record.id)):
        raise ValueError(f"it is the record of {record.id}, in a directory of another name")
    return record


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a value read from JSON is of a field's type."""
    inside = get_args(hint)
    if hint is Any:
        return True
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(each, inside[0]) for each in value)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(_fits(each, inside[1]) for each in value.values())
    if inside:  # X | None
        return any(_fits(value, each) for each in inside)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float if hint is float else hint)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _words(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is none"
    return str(error) or type(error).__name__
