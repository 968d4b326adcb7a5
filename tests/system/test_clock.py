"""A wall clock that steps back: stamps are only words, durations and order do not follow it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import drill
import pytest
from drill import Found, Make

from encoderkit.report.table import compare
from encoderkit.sweep import record, store
from encoderkit.sweep.run import opening, run_cell
from encoderkit.sweep.runner import Ended, Observer, View, run_sweep


class Backwards(datetime):
    """A clock that is an hour earlier each time one looks."""

    looks = 0

    @classmethod
    def now(cls, tz=None):
        cls.looks += 1
        return datetime(2026, 10, 25, 2, 30, tzinfo=UTC) - timedelta(hours=cls.looks)


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "datetime", Backwards)
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began - 3600 * (Backwards.looks + 1))


@pytest.mark.hazard("honeycombio/beeline-python#223")
def test_durations_and_order_do_not_follow_the_clock(
    backwards: None, make: Make, undisturbed: dict[str, Found]
) -> None:
    made = make(3)
    made.save()
    for cell in made.cells:  # in this process, whose clock is ours
        assert run_cell(cell, made.directory) == "ok"
    assert drill.found(made.directory) == {c.name: undisturbed[c.name] for c in made.cells}
    found = store.records(made.directory)
    assert found.malformed == [] and [r.id for r in found.records] == [
        cell.id for cell in sorted(made.cells, key=lambda cell: cell.name)
    ]
    for each in found.records:
        assert each.started > (each.ended or "")  # the stamps are what the clock said
        assert 0 < each.seconds["train"] < each.seconds["total"] < 60
    assert [(row.label, row.n) for row in compare(made.directory).rows] == [("default", 3)]


class Times(Observer):
    """Keeps the times that a sweep tells."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def ended(self, ended: Ended, view: View) -> None:
        self.seconds += [ended.seconds, view.seconds, view.remaining or 0.0]


@pytest.mark.hazard("honeycombio/beeline-python#223")
def test_a_sweep_that_goes_on_at_an_earlier_hour(
    backwards: None, make: Make, undisturbed: dict[str, Found]
) -> None:
    """The next start is before the last one by its stamps; what is done stays done."""
    made, times = make(2), Times()
    assert run_cell(made.cells[0], made.directory) == "ok"
    kept = drill.finished(made.directory)
    assert run_sweep(made, times) == 0
    assert drill.finished(made.directory).items() >= kept.items()
    assert drill.found(made.directory) == {c.name: undisturbed[c.name] for c in made.cells}
    assert len(times.seconds) == 6 and all(0 <= each < 60 for each in times.seconds)
    assert drill.starts(made.directory) == {cell.name: 1 for cell in made.cells}


def test_a_failure_is_run_again_whatever_its_stamp_says(
    backwards: None, make: Make, undisturbed: dict[str, Found]
) -> None:
    made = make(1)
    place: Path = made.directory / made.cells[0].name
    place.mkdir(parents=True)
    failed = opening(made.cells[0])
    failed.state, failed.started = "error", "2999-01-01T00:00:00.000+00:00"
    record.save(failed, place)
    assert run_sweep(made) == 1
    assert run_sweep(made, retry_failed=True) == 0
    assert drill.found(made.directory) == {c.name: undisturbed[c.name] for c in made.cells}
