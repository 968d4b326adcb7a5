"""Two sweeps started at one instant on one directory: every cell runs once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import drill
import pytest
from drill import Found, Make

from encoderkit.errors import StoreError
from encoderkit.sweep import pool, record, run, runner
from encoderkit.sweep.plan import Plan, plan
from encoderkit.sweep.runner import run_sweep, states

CATALOGUE = """
from encoderkit.api import Part, hookimpl

API_VERSION = 1

@hookimpl
def encoderkit_parts():
    return [Part("norm", "breaks", "bad_norm.part:Breaks", "")]
"""
PART = """
from encoderkit.nn import Norm

class Breaks(Norm):
    def forward(self, x, ctx):
        if not x.is_meta:
            raise ValueError("as it must")
        return x
"""


def at_one_instant(made: Plan) -> list[int | None]:
    """Return the exit codes of two runners that a gate lets go together."""
    gate = pool.context(runner.PRELOAD, start=True).Barrier(2)  # type: ignore[attr-defined]
    runners = [drill.start(made, 0, None, gate) for _ in range(2)]
    for each in runners:
        each.join(60)
    return [each.exitcode for each in runners]


@pytest.mark.hazard("hydra-ecosystem/hydra#2925")
def test_nothing_runs_twice(make: Make, undisturbed: dict[str, Found]) -> None:
    made = make(6)
    assert at_one_instant(made) == [0, 0]
    assert drill.found(made.directory) == {c.name: undisturbed[c.name] for c in made.cells}
    assert drill.starts(made.directory) == {cell.name: 1 for cell in made.cells}


@pytest.mark.hazard("hydra-ecosystem/hydra#2925")
def test_nor_does_what_fails(install: Callable[..., Path], tmp_path: Path) -> None:
    install("bad-norm", __init__=CATALOGUE, part=PART)
    words = ["norm=breaks,layernorm", "seeds=2", "jobs=2", f"sweep.dir={tmp_path}/s"]
    made = plan([*drill.SMALL, *words])
    assert at_one_instant(made) == [1, 1]
    assert sorted(states(made).values()) == ["error", "error", "ok", "ok"]
    assert drill.starts(made.directory) == {cell.name: 1 for cell in made.cells}


def test_a_failure_of_somebody_else_stands_and_ones_own_is_run_again(
    make: Make, undisturbed: dict[str, Found]
) -> None:
    made = make(1)
    (cell,) = made.cells
    made.save()
    (made.directory / cell.name).mkdir()
    failed = run.opening(cell)
    failed.state, failed.reason = "error", "as it must"
    record.save(failed, made.directory / cell.name)
    assert run.run_cell(cell, made.directory, known="") == "error"
    assert run.run_cell(cell, made.directory, known="2000-01-01T00:00:00.000+00:00") == "error"
    assert record.load(made.directory / cell.name).reason == "as it must"
    assert run.run_cell(cell, made.directory, known=failed.started) == "ok"
    assert drill.found(made.directory) == {cell.name: undisturbed[cell.name]}


def test_a_cell_that_another_runner_takes_up_is_looked_at_again(
    make: Make, undisturbed: dict[str, Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process dies, and before its record is closed another runner has the cell."""
    made, seen = make(1), []
    real = runner.close_for

    def late(cell, root, state, reason):
        seen.append(state)
        found = record.load(root / cell.name)
        assert found.state == record.RUNNING
        return found.state if len(seen) == 1 else real(cell, root, state, reason)

    monkeypatch.setattr(runner, "close_for", late)
    marks = made.directory.parent
    moment = {made.cells[0].id: 40}
    work = drill.partial(drill.killed_at, moment, marks)
    monkeypatch.setattr(runner, "_in_process", work)
    assert run_sweep(made) == 0 and seen == ["killed"]
    assert drill.found(made.directory) == {c.name: undisturbed[c.name] for c in made.cells}


@pytest.mark.hazard("own: a directory that cannot be written")
def test_a_place_that_cannot_be_made_is_an_error_for_both(make: Make) -> None:
    made = make(1)
    made.directory.touch()
    for _ in range(2):
        with pytest.raises(StoreError, match="no results can be written there"):
            run_sweep(made)
