"""The progress of one run on a terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from encoderkit.train.loop import Watch as TrainWatch


class Watch(TrainWatch):
    """A watch that shows nothing."""

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave nothing behind."""


class Bar(Watch):
    """A bar with loss, tokens a second and remaining time."""

    def __init__(self, steps: int) -> None:
        columns = (
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.4f}, {task.fields[speed]:,.0f} tokens/s"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), refresh_per_second=5)
        self._task = self._progress.add_task("", total=steps, loss=float("nan"), speed=0.0)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the bar."""
        self._progress.stop()

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=step, loss=loss, speed=tokens_per_second)
