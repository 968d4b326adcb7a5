"""The progress of one run: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
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
        """Stop showing."""
        self.close()

    def close(self) -> None:
        """Leave nothing behind."""


class Bar(Watch):
    """A bar with loss, tokens a second and remaining time."""

    def __init__(self, steps: int) -> None:
        columns = (
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]}, {task.fields[speed]} tokens/s"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), refresh_per_second=5)
        self._task = self._progress.add_task("", total=steps, loss="-", speed="-")
        self._moving = False

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def close(self) -> None:
        """Close the bar."""
        self._progress.stop()

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Move the bar; it begins where the run does, so that the remaining time is right."""
        if not self._moving:
            self._progress.reset(self._task, completed=step - 1)
            self._moving = True
        now = {"loss": f"{loss:.4f}", "speed": f"{tokens_per_second:,.0f}"}
        self._progress.update(self._task, completed=step, **now)  # type: ignore[arg-type]


class Lines(Watch):
    """A line on stderr at every tenth of the steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._every = -(-steps // 10)

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Print the step when it is a tenth."""
        if step % self._every == 0:
            line = f"step {step}/{self._steps} loss {loss:.4f} {tokens_per_second:,.0f} tokens/s"
            print(line, file=sys.stderr, flush=True)
