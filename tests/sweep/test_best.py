"""The best run so far: of each task by its own metric, and never one without a number."""

from __future__ import annotations

import pytest

from encoderkit.sweep.best import Best, Standing
from encoderkit.sweep.cell import Cell
from encoderkit.sweep.plan import single
from encoderkit.sweep.record import Record
from encoderkit.sweep.run import opening


@pytest.fixture(scope="module")
def cell() -> Cell:
    return single(["train=smoke"])[1]


def ended(cell: Cell, loss: float | None, **values: object) -> Record:
    found = opening(cell)
    found.state, found.metrics = "ok", {"loss": loss}
    for name, value in values.items():
        setattr(found, name, value)
    return found


@pytest.mark.parametrize("losses", [[None, 2.0, 1.0, 3.0], [2.0, None, 1.0], [1.0, 1.0, None]])
def test_a_number_that_is_not_finite_is_never_best(cell: Cell, losses: list[float | None]) -> None:
    standing = Standing(ended(cell, loss) for loss in losses)
    assert standing.best == (Best("sort", "loss", 1.0, cell.label, 0),)
    assert str(standing.best[0]) == f"best sort loss 1.0000: {cell.label} seed=0"


def test_each_one_hears_whether_it_leads(cell: Cell) -> None:
    standing = Standing()
    losses = [None, 2.0, 2.0, 1.0, 1.5]
    assert [standing.add(ended(cell, each)) for each in losses] == [False, True, False, True, False]


@pytest.mark.parametrize("state", ["nonfinite", "error", "killed", "timeout", "interrupted"])
def test_what_did_not_end_with_a_number_does_not_count(cell: Cell, state: str) -> None:
    standing = Standing()
    assert not standing.add(ended(cell, 0.1, state=state, tokens=10, seconds={"train": 1.0}))
    assert (standing.best, standing.tokens_per_second) == ((), None)


def test_tasks_and_data_have_each_their_best(cell: Cell) -> None:
    higher = dict(cell.task) | {"metric": "accuracy", "lower_is_better": False}
    found = [
        ended(cell, 1.0),
        ended(cell, 0.5, data_hash="other"),
        ended(cell, None, task=higher, metrics={"accuracy": 0.4}),
        ended(cell, None, task=higher, metrics={"accuracy": 0.6}),
    ]
    assert [each.value for each in Standing(found).best] == [1.0, 0.5, 0.6]


def test_the_speed_is_the_mean_of_the_runs_while_they_train(cell: Cell) -> None:
    found = [ended(cell, 1.0, tokens=n, seconds={"train": 2.0, "total": 9.0}) for n in (10, 30)]
    assert Standing([*found, ended(cell, 1.0)]).tokens_per_second == 10
