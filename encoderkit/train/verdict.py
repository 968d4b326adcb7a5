"""What a run's validation losses say of it, while it runs and at its end; no torch here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

STALL = 0.95  # of the trivial loss; .98 missed a clear stall at 2.413 of 2.485
SPIKE = 0.2  # of the trivial loss: how far the loss may end above its best


class Loss(NamedTuple):
    """A validation loss, and the step that it was measured at."""

    step: int
    value: float


def stands_still(loss: float, trivial: float) -> bool:
    """Tell whether a loss is no better than 0.95 of the trivial loss, whatever its sign."""
    return loss >= trivial - (1 - STALL) * abs(trivial)


def rise(now: Loss, best: Loss, trivial: float) -> str:
    """Return in words that the loss has risen far above its best, if it has."""
    if now.value - best.value <= SPIKE * abs(trivial):
        return ""
    return (
        f"the validation loss rose from {best.value:.4g} at step {best.step} to {now.value:.4g} "
        f"at step {now.step}, by more than {SPIKE} of the trivial loss"
    )


def stall(now: Loss, trivial: float) -> str:
    """Return in words that the loss is near the trivial one, if it is."""
    if not stands_still(now.value, trivial):
        return ""
    return (
        f"the validation loss {now.value:.4g} is no better than {STALL} of the trivial loss "
        f"{trivial:.4g}"
    )


def so_far(losses: Iterable[Loss], trivial: float) -> str:
    """Return in words what is wrong with a run that has these losses, in order; at step 0 nothing.

    That is what `spiked` or `stalled` would be said for if the run ended now.
    """
    seen = list(losses)
    if not seen or seen[-1].step == 0:
        return ""
    return rise(seen[-1], min(seen, key=lambda each: each.value), trivial) or stall(
        seen[-1], trivial
    )
