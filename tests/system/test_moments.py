"""SIGKILL of a cell and of its runner, at twenty moments each: nothing is lost or done twice."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import drill
import pytest
from drill import Found, Make, Wire, spread

from encoderkit.report.table import compare
from encoderkit.sweep import runner, store
from encoderkit.sweep.run import run_cell
from encoderkit.sweep.runner import run_sweep, states


@pytest.fixture(scope="module")
def calls(planned, tmp_path_factory) -> list[str]:
    """The moments in the life of one cell."""
    cell, root = planned.cells[0], tmp_path_factory.mktemp("one")
    (root / cell.name).mkdir()  # as the runner does
    with Wire().laid() as wire:
        assert run_cell(cell, root, stop=wire.asked) == "ok"
    return wire.seen


def test_the_moments_are_spread_over_all_of_a_life(calls: list[str]) -> None:
    names = {calls[n - 1] for n in spread(len(calls))}
    assert len(set(spread(len(calls)))) == 20 and names >= {"ask", "fsync", "open", "write"}
    assert calls.count("ask") >= 5 and calls.count("replace") >= 3 + 3 * 1


@pytest.mark.hazard(
    "joblib/joblib#812", "Lightning-AI/pytorch-lightning#688", "ray-project/ray#33706"
)
def test_a_cell_killed_at_any_of_twenty_moments_is_whole_when_asked_for_again(
    make: Make,
    calls: list[str],
    undisturbed: dict[str, Found],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = make(20)
    moments = {cell.id: n for cell, n in zip(plan.cells, spread(len(calls)), strict=True)}
    work = partial(drill.killed_at, moments, tmp_path)
    monkeypatch.setattr(runner, "_in_process", work)
    assert run_sweep(plan) == 1
    found = list(states(plan).values())
    assert set(found) == {"killed", "ok"}
    assert found == sorted(found)  # ok: those that died after the final record, which counts
    kept = drill.finished(plan.directory)
    assert run_sweep(plan) == 1 and list(states(plan).values()) == found  # nothing unasked
    assert run_sweep(plan, retry_failed=True) == 0
    assert drill.found(plan.directory) == undisturbed
    assert {path: path.read_bytes() for path in kept} == kept
    assert store.records(plan.directory).malformed == []
    assert [(row.label, row.n) for row in compare(plan.directory).rows] == [("default", 20)]


def test_retries_do_it_in_one_sweep(
    make: Make,
    calls: list[str],
    undisturbed: dict[str, Found],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = make(4)
    plan = replace(plan, sweep=replace(plan.sweep, retries=1))
    middle = {cell.id: len(calls) * (n + 1) // 5 for n, cell in enumerate(plan.cells)}
    monkeypatch.setattr(runner, "_in_process", partial(drill.killed_at, middle, tmp_path))
    assert run_sweep(plan) == 0
    assert drill.found(plan.directory) == {c.name: undisturbed[c.name] for c in plan.cells}


def resumed(make: Make, undisturbed: dict[str, Found], name: str, *given: object) -> None:
    """Let a runner be killed, start again at once, and see that all is as if it had not been."""
    plan = make(2, name)
    process = drill.start(plan, *given)
    process.join(60)
    assert process.exitcode == -9
    kept = drill.finished(plan.directory) if plan.directory.exists() else {}
    assert run_sweep(plan) == 0
    assert drill.found(plan.directory) == {c.name: undisturbed[c.name] for c in plan.cells}
    assert {path: path.read_bytes() for path in kept} == kept
    assert max(drill.starts(plan.directory).values()) <= 2


@pytest.mark.hazard("ray-project/ray#12347", "kubeflow/katib#845", "ray-project/ray#33706")
def test_a_runner_killed_at_each_of_its_own_moments(
    make: Make, undisturbed: dict[str, Found], tmp_path: Path
) -> None:
    plan = make(2, "count")
    with Wire().laid() as wire:
        assert run_sweep(plan, drill.Touching(wire)) == 0
    assert wire.seen[-1] == "finish" and len(wire.seen) >= 10
    for n in range(1, len(wire.seen) + 1):
        resumed(make, undisturbed, f"at{n}", n)


@pytest.mark.hazard("ray-project/ray#33706")
def test_a_runner_killed_at_ten_moments_of_its_cells(
    make: Make, calls: list[str], undisturbed: dict[str, Found], tmp_path: Path
) -> None:
    for n in spread(len(calls), 10):
        (tmp_path / f"marks{n}").mkdir()
        work = partial(drill.killing_at, n, tmp_path / f"marks{n}")
        resumed(make, undisturbed, f"in{n}", 0, work)
