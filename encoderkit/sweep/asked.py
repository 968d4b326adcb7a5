"""Signals as requests: the work that runs looks whether it was asked to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Asked:
    """How often one was asked to stop, and the last time in words."""

    def __init__(self, patience: int | None = None) -> None:
        self.count = 0
        self.last = ""
        self.told: Callable[[], object] = lambda: None  # is called with each signal
        self._patience = patience

    def __call__(self) -> str:
        """Return why to stop, or an empty string."""
        return self.last

    def hear(self, number: int, frame: FrameType | None = None) -> None:
        """Note one signal. Errors: KeyboardInterrupt when the patience is at its end."""
        self.count += 1
        self.last = f"asked to stop by {signal.Signals(number).name}"
        self.told()
        if self._patience is not None and self.count > self._patience:
            raise KeyboardInterrupt


def deaf(number: int, frame: FrameType | None = None) -> None:
    """Take no notice of a signal; where this is set, it is another process's to hear."""


@contextmanager
def listen(*numbers: int, patience: int | None = None) -> Iterator[Asked]:
    """Take the signals as requests while the block runs; only a main thread can.

    SIGHUP stays ignored where it is, as under nohup, and so does what `deaf` hears. After more than
    `patience` signals KeyboardInterrupt is raised where the program stands.
    """
    asked = Asked(patience)
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    heard = [
        number
        for number in numbers
        if (now := signal.getsignal(number)) is not deaf
        and not (number == signal.SIGHUP and now == signal.SIG_IGN)
    ]
    before = {number: signal.signal(number, asked.hear) for number in heard}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
