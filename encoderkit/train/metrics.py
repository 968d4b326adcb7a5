"""A run's metrics: one line of strict JSON each, appended; no torch here."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from encoderkit.errors import StoreError


class Metric(NamedTuple):
    """One number of a run; `value` is None where the number was not finite."""

    step: int
    name: str
    value: float | None


class MetricsFile:
    """An open metrics.jsonl that keeps its first `offset` bytes; no line holds a time of day."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._file = open(path, "ab")  # noqa: SIM115 - closed by `close`
        try:
            self._file.truncate(offset)
            self._file.seek(0, os.SEEK_END)
        except OSError:
            self._file.close()
            raise

    def log(self, step: int, name: str, value: float) -> None:
        """Append one line; a number that is not finite becomes null."""
        line = {"step": step, "name": name, "value": value if math.isfinite(value) else None}
        self._file.write(json.dumps(line, allow_nan=False).encode() + b"\n")

    def flush(self) -> None:
        """Let readers see all lines."""
        self._file.flush()

    def sync(self) -> int:
        """Make all lines survive a power cut, and return their length in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Write what is pending and close the file."""
        self._file.close()


def read_metrics(path: Path) -> Iterator[Metric]:
    """Yield the metrics of a run in order; a last line that was cut off is left out.

    Errors: StoreError for any other line that is not a metric.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield Metric(**json.loads(line))
            except (ValueError, TypeError) as error:
                if not line.endswith(b"\n"):
                    return
                raise StoreError(f"{path}, line {number}: not a metric: {line[:60]!r}") from error
