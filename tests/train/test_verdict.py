"""What validation losses say of a run, at its end and on the way."""

from __future__ import annotations

import pytest

from encoderkit.train.verdict import Loss, rise, so_far, stall, stands_still

STILL = "the validation loss 9.6 is no better than 0.95 of the trivial loss 10"
ROSE = (
    "the validation loss rose from 1 at step 5 to 3.1 at step 10, by more than 0.2 of the "
    "trivial loss"
)


@pytest.mark.parametrize(
    "loss,trivial,still",
    [(9.6, 10, True), (9.4, 10, False), (-10.4, -10, True), (-10.6, -10, False), (0.0, 0.0, True)],
)
def test_a_loss_may_be_negative(loss: float, trivial: float, still: bool) -> None:
    assert stands_still(loss, trivial) == still
    assert bool(stall(Loss(1, loss), trivial)) == still


@pytest.mark.parametrize("value,words", [(3.0, ""), (3.1, ROSE)])
def test_a_rise_is_measured_in_the_trivial_loss(value: float, words: str) -> None:
    assert rise(Loss(10, value), Loss(5, 1.0), 10) == words


@pytest.mark.parametrize(
    "losses,words",
    [
        ([], ""),
        ([(0, 10.0)], ""),  # every run begins there
        ([(0, 10.0), (5, 9.6)], STILL),
        ([(0, 10.0), (5, 9.6), (10, 9.0)], ""),
        ([(0, 10.0), (5, 1.0), (10, 3.1)], ROSE),
        ([(0, 10.0), (5, 1.0), (10, 3.1), (15, 2.9)], ""),
    ],
)
def test_what_is_wrong_so_far(losses: list[tuple[int, float]], words: str) -> None:
    assert so_far([Loss(*each) for each in losses], 10) == words
