from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from encoderkit.sweep import forecast, record
from encoderkit.sweep.forecast import KEPT, STATES, Forecast, disk_bytes, disk_notes, forecasts
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
    held, disk = STATES * one.parameters, KEPT * one.parameters
    assert got["norm=rmsnorm"] == Forecast(4.0, held, disk, "1 run that ended")
    assert got["norm=layernorm"].source == "the budget's preset"
    left(tmp_path, two, 6.0)
    assert forecasts(tmp_path, found.cells)["norm=rmsnorm"] == Forecast(
        5.0, held, disk, "2 runs that ended"
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
    held, disk = (size * found.cells[0].parameters for size in (STATES, KEPT))
    assert got["norm=layernorm"] == Forecast(3.5, held + 1000, disk, "trial steps")


def test_runs_of_another_budget_tell_nothing(tmp_path: Path) -> None:
    """One directory, by `sweep.name`, may have held a longer sweep before."""
    long, short = asked("train.steps=70", "train.warmup=1"), asked(*OWN)
    left(tmp_path, long.cells[0], 40.0)
    assert forecasts(tmp_path, long.cells)["norm=layernorm"].seconds == 40.0
    assert forecasts(tmp_path, short.cells)["norm=layernorm"].seconds is None


@pytest.mark.parametrize(
    ("keep", "checkpoints"), [("none", 0), ("last", 1), ("best", 2), ("all", 1 + 4)]
)
def test_a_plan_takes_the_checkpoints_that_stay(keep: str, checkpoints: int) -> None:
    """Of 7 steps, `all` keeps those at 2, 4, 6 and the end, beside the last."""
    (cell, *_) = asked(*OWN, f"run.keep={keep}", "run.checkpoint_every=2").cells
    assert disk_bytes([cell]) == checkpoints * 12 * cell.parameters


def test_a_disk_that_will_be_full_is_named_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asked(*OWN)
    needed = disk_bytes(found.cells)

    def free(number: float) -> None:
        usage = SimpleNamespace(free=int(number))
        monkeypatch.setattr(forecast.shutil, "disk_usage", lambda place: usage)

    free(needed / 0.8 + 1)
    assert disk_notes(tmp_path / "s", found.cells) == []
    free(needed / 0.8 - 1)
    (note,) = disk_notes(tmp_path / "s", found.cells)
    assert note.startswith("the checkpoints will take 6.9 MiB, and 8.6 MiB are free on the disk of")
    for cell in found.cells:  # what has begun has its place
        (tmp_path / "s" / cell.name).mkdir(parents=True)
    assert disk_notes(tmp_path / "s", found.cells) == []


@pytest.mark.parametrize(
    "size,words",
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1.5 * 2**20, "1.5 MiB"),
        (2**30, "1.0 GiB"),
        (2**50, "1024.0 TiB"),
    ],
)
def test_an_amount_has_a_unit_that_shows_it(size: float, words: str) -> None:
    assert forecast.amount(size) == words
