from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from encoderkit.sweep.asked import deaf, listen


def test_signals_become_requests() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with listen(signal.SIGUSR1) as asked:
        assert (asked(), asked.count) == ("", 0)
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert (asked(), asked.count) == ("asked to stop by SIGUSR1", 2)
    assert signal.getsignal(signal.SIGUSR1) == before


def test_patience_has_an_end() -> None:
    with listen(signal.SIGUSR1, patience=1) as asked:
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGUSR1)
    assert asked.count == 2


def test_other_threads_hear_nothing_and_work() -> None:
    found = []

    def work() -> None:
        with listen(signal.SIGINT) as asked:
            found.append(asked())

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [""] and signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize(
    "number,handler,heard",
    [
        (signal.SIGHUP, signal.SIG_IGN, False),  # nohup
        (signal.SIGHUP, signal.SIG_DFL, True),
        (signal.SIGINT, signal.SIG_IGN, True),  # as shells start what runs in the background
        (signal.SIGINT, deaf, False),
    ],
)
def test_what_is_to_be_ignored_stays_so(number: signal.Signals, handler: Any, heard: bool) -> None:
    before = signal.signal(number, handler)
    try:
        with listen(number) as asked:
            signal.raise_signal(number)
        assert asked.count == heard and signal.getsignal(number) == handler
    finally:
        signal.signal(number, before)
