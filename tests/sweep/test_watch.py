from __future__ import annotations

from encoderkit.sweep.watch import Obedient
from encoderkit.train.loop import Watch


class Notes(Watch):
    def __init__(self) -> None:
        self.reason = ""
        self.seen: list[tuple[int, float, float]] = []
        self.starts: list[int] = []

    def stop(self) -> str:
        return self.reason

    def started(self, step: int) -> None:
        self.starts.append(step)

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        self.seen.append((step, loss, tokens_per_second))


def test_an_order_comes_first_and_all_else_is_passed_on() -> None:
    notes, orders = Notes(), [""]
    both = Obedient(notes, lambda: orders[0], lambda text: None)
    assert both.stop() == ""
    notes.reason = "its own"
    assert both.stop() == "its own"
    orders[0] = "ordered"
    assert both.stop() == "ordered"
    both.progress(3, 1.5, 100.0)
    assert notes.seen == [(3, 1.5, 100.0)]


def test_a_run_that_goes_on_says_from_where() -> None:
    notes, log = Notes(), []
    both = Obedient(notes, lambda: "", log.append)
    both.started(0)
    both.started(200)
    assert notes.starts == [0, 200] and log == ["goes on from its checkpoint at step 200"]
