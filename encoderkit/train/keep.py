"""Where a run's metrics and checkpoints go: into its directory, or nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from encoderkit import fs
from encoderkit.errors import CheckpointError, StoreError
from encoderkit.train import checkpoint
from encoderkit.train.checkpoint import Checkpoint
from encoderkit.train.metrics import MetricsFile


class Keeper:
    """Stands in where nothing is kept."""

    def load(self) -> Checkpoint | None:
        """Return the checkpoint there is."""
        return None

    def begin(self, found: Checkpoint | None) -> None:
        """Open the metrics behind a checkpoint, or from their start."""

    def log(self, step: int, name: str, value: float) -> None:
        """Append a metric."""

    def flush(self) -> None:
        """Let readers see the metrics so far."""

    def save(
        self, weights: dict[str, Tensor], state: dict[str, Any], about: dict[str, Any]
    ) -> None:
        """Replace the checkpoint."""

    def copy(
        self, name: str, weights: dict[str, Tensor], state: dict[str, Any], about: dict[str, Any]
    ) -> None:
        """Write a checkpoint that stays, under a name of its own."""

    def drop(self) -> None:
        """Remove the checkpoint, which nobody goes on from."""

    def close(self) -> None:
        """Close the metrics."""


class DirectoryKeeper(Keeper):
    """Keeps metrics.jsonl and checkpoint/ in a directory, which is made when it is missing.

    Errors: StoreError when the disk refuses, CheckpointError when a file is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.checkpoint = directory / checkpoint.DIRECTORY
        self.metrics = directory / "metrics.jsonl"
        with _writing(directory):
            directory.mkdir(parents=True, exist_ok=True)

    def load(self) -> Checkpoint | None:
        """Return the checkpoint, if there is one."""
        return checkpoint.load(self.checkpoint)

    def begin(self, found: Checkpoint | None) -> None:
        """Open metrics.jsonl, cut back to what it held when the checkpoint was made."""
        offset = int(found.about.get("metrics_bytes", 0)) if found else 0
        size = self.metrics.stat().st_size if self.metrics.exists() else 0
        if size < offset:
            raise CheckpointError(
                f"{self.metrics} has {size} bytes, and the checkpoint beside it was made when it "
                f"had {offset}. Remove {self.checkpoint} to train from the start."
            )
        with _writing(self.metrics):
            self._file = MetricsFile(self.metrics, offset)

    def log(self, step: int, name: str, value: float) -> None:
        """Append a line to metrics.jsonl."""
        with _writing(self.metrics):
            self._file.log(step, name, value)

    def flush(self) -> None:
        """Write the pending lines to metrics.jsonl."""
        with _writing(self.metrics):
            self._file.flush()

    def save(
        self, weights: dict[str, Tensor], state: dict[str, Any], about: dict[str, Any]
    ) -> None:
        """Replace the checkpoint; the metrics before it reach the disk first."""
        with _writing(self.metrics):
            written = self._file.sync()
        about = about | {"metrics_bytes": written}
        checkpoint.save(self.checkpoint, Checkpoint(weights, state, about))

    def copy(
        self, name: str, weights: dict[str, Tensor], state: dict[str, Any], about: dict[str, Any]
    ) -> None:
        """Write checkpoint-NAME beside the checkpoint."""
        place = self.checkpoint.with_name(f"{self.checkpoint.name}-{name}")
        checkpoint.save(place, Checkpoint(weights, state, about))

    def drop(self) -> None:
        """Remove the checkpoint."""
        with _writing(self.checkpoint):
            fs.remove_directory(self.checkpoint)

    def close(self) -> None:
        """Close metrics.jsonl."""
        with _writing(self.metrics):
            self._file.close()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
