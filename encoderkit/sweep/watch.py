"""What a running cell listens to."""

from __future__ import annotations

from collections.abc import Callable

from encoderkit.train.loop import Watch


class Obedient(Watch):
    """Passes everything on to another watch, and stops on an order too."""

    def __init__(self, watch: Watch, order: Callable[[], str]) -> None:
        self._watch = watch
        self._order = order

    def stop(self) -> str:
        """Return the order's reason, else the other's."""
        return self._order() or self._watch.stop()

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Tell the other."""
        self._watch.progress(step, loss, tokens_per_second)
