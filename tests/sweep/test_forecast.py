from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from encoderkit.sweep import record
from encoderkit.sweep.forecast import STATES, Forecast, forecasts
from encoderkit.sweep.plan import Plan, plan
from encoderkit.sweep.run import opening
from encoderkit.train import trial as trials

OWN = ["train.steps=7", "train.warmup=1"]  # no preset speaks of it


def asked(*words: str) -> Plan:
    return plan(["norm=layernorm,rmsnorm", "seeds=2", *words])


def left(root: Path, cell: Any, seconds: float | None, state: str = "ok") -> None:
    """Write the record of a run that ended."""
    found = opening(cell)
    found.state = state
    found.seconds = {} if seconds is None else {"total": seconds}
    place = root / cell.name
    place.mkdir(parents=True)
    record.save(found, place)


def test_what_nobody_knows_is_unknown(tmp_path: Path) -> None:
    found = asked(*OWN)
    got = forecasts(tmp_path / "none", found.cells)
    assert list(got) == found.labels
    assert {each.source for each in got.values()} == {"unknown"}
    assert [each.seconds for each in got.values()] == [None, None]
    assert got["norm=rmsnorm"].memory_bytes == STATES * found.cells[1].parameters


def test_the_preset_of_a_budget_speaks_of_the_run_that_it_was_measured_on(tmp_path: Path) -> None:
    smoke = forecasts(tmp_path, asked("train=smoke").cells)["norm=rmsnorm"]
    assert (smoke.seconds, smoke.source) == (3, "the budget's preset")
    text = forecasts(tmp_path, asked("train=smoke", "task=mlm_pydoc").cells)["norm=rmsnorm"]
    assert text.seconds == 4
    for other in ("model.d_model=32", "model.n_layers=1", "train.batch=4", "model=small"):
        got = forecasts(tmp_path, asked("train=smoke", other).cells)["norm=rmsnorm"]
        assert (got.seconds, got.source) == (None, "unknown")
    ruled = asked("train=smoke", "model.layers=[{at:0,norm:none}]")
    assert forecasts(tmp_path, ruled.cells)["norm=rmsnorm"].seconds is None


def test_runs_that_ended_are_believed_first(tmp_path: Path) -> None:
    found = asked("train=smoke", f"sweep.dir={tmp_path}")
    one, two = (cell for cell in found if cell.label == "norm=rmsnorm")
    other = next(cell for cell in found if cell.label == "norm=layernorm")
    left(tmp_path, one, 4.0)
    left(tmp_path, other, 100.0, "killed")
    got = forecasts(tmp_path, found.cells)
    held = STATES * one.parameters
    assert got["norm=rmsnorm"] == Forecast(4.0, held, "1 run that ended")
    assert got["norm=layernorm"].source == "the budget's preset"
    left(tmp_path, two, 6.0)
    assert forecasts(tmp_path, found.cells)["norm=rmsnorm"] == Forecast(
        5.0, held, "2 runs that ended"
    )


def test_runs_that_left_no_seconds_tell_nothing(tmp_path: Path) -> None:
    found = asked(*OWN)
    left(tmp_path, found.cells[0], None)
    assert forecasts(tmp_path, found.cells)["norm=layernorm"].source == "unknown"


def test_a_directory_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "record.json").write_text("{")
    found = asked(*OWN)
    assert forecasts(tmp_path, found.cells)["norm=layernorm"].source == "unknown"


def test_a_trial_is_a_step_times_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def trial(config: Any) -> tuple[float, int]:
        tried.append(config.norm.entry.part.name)
        return 0.5, 1000

    monkeypatch.setattr(trials, "trial", trial)
    found = asked(*OWN)
    got = forecasts(tmp_path, found.cells, trials=True)
    assert sorted(tried) == ["layernorm", "rmsnorm"]  # once a variant, whatever its seeds
    held = STATES * found.cells[0].parameters
    assert got["norm=layernorm"] == Forecast(3.5, held + 1000, "trial steps")
