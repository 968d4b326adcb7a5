"""What a running cell listens to."""

from __future__ import annotations

from collections.abc import Callable

from encoderkit.train.loop import Watch


class Obedient(Watch):
    """Passes everything on to another watch, stops on an order too, and logs where it starts."""

    def __init__(
        self, watch: Watch, order: Callable[[], str], log: Callable[[str], object]
    ) -> None:
        self._watch = watch
        self._order = order
        self._log = log

    def stop(self) -> str:
        """Return the order's reason, else the other's."""
        return self._order() or self._watch.stop()

    def started(self, step: int) -> None:
        """Log it, and tell the other."""
        if step:
            self._log(f"goes on from its checkpoint at step {step}")
        self._watch.started(step)

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Tell the other."""
        self._watch.progress(step, loss, tokens_per_second)
