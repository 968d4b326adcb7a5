from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from encoderkit.errors import StoreError
from encoderkit.report.table import compare
from encoderkit.sweep import lock, pool, record, run, runner
from encoderkit.sweep.cell import Cell
from encoderkit.sweep.plan import Plan, plan
from encoderkit.sweep.runner import Ended, Observer, View, exit_code, run_sweep, states

SMALL = ["train.steps=4", "train.warmup=1", "train.eval_every=0", "model.d_model=16"]
SMALL += ["model.n_layers=1", "model.n_heads=2", "train.judge_stall=false"]

# A norm that a test can make fail in a process of its own.
MODULE = """
import os, signal, time
from pathlib import Path
from encoderkit.sweep.run import run_cell

def crash(cell, root, known, *, stop):
    if cell.label == "norm=none":
        os.kill(os.getpid(), signal.SIGKILL)
    return run_cell(cell, root, stop=stop, known=known)

def plainly(cell, root, known, *, stop):
    return run_cell(cell, root, stop=stop, known=known)

def crash_once(cell, root, known, *, stop):
    mark = root / f"{cell.name}.crashed"
    if cell.label == "norm=none" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return run_cell(cell, root, stop=stop, known=known)

def fail(cell, root, known, *, stop):
    from encoderkit.train import loop
    if cell.label == "norm=none":
        loop.fit = broken
    return run_cell(cell, root, stop=stop, known=known)

def broken(*arguments, **names):
    raise ValueError("as it must")

def hoard(cell, root, known, *, stop):
    import torch
    if cell.label == "norm=none":
        torch.ones(10 * 2**30, dtype=torch.uint8)
    return run_cell(cell, root, stop=stop, known=known)
"""


@pytest.fixture
def works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that names what the cells' processes run in place of `run_cell`."""
    (tmp_path / "runner_works.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("runner_works", None)
    module = importlib.import_module("runner_works")
    with monkeypatch.context() as patch:
        yield lambda name: patch.setattr(runner, "_in_process", getattr(module, name))


class Notes(Observer):
    """Writes down what a sweep tells."""

    def __init__(self) -> None:
        self.first: View | None = None
        self.last: View | None = None
        self.started_cells: list[str] = []
        self.endings: list[Ended] = []
        self.views: list[View] = []
        self.held_cells: list[str] = []
        self.again_cells: list[Ended] = []
        self.interrupted: bool | None = None

    def begin(self, view: View) -> None:
        self.first = view

    def started(self, cell: Cell, view: View) -> None:
        self.started_cells.append(cell.id)

    def ended(self, ended: Ended, view: View) -> None:
        self.endings.append(ended)
        self.views.append(view)

    def again(self, ended: Ended, view: View) -> None:
        self.again_cells.append(ended)

    def held(self, cell: Cell, view: View) -> None:
        self.held_cells.append(cell.id)

    def finish(self, view: View, interrupted: bool) -> None:
        self.last, self.interrupted = view, interrupted


def small_but(*given: str) -> list[str]:
    """Return what makes a run small, without the keys that are given."""
    keys = {word.partition("=")[0] for word in given}
    return [word for word in SMALL if word.partition("=")[0] not in keys]


def two(tmp_path: Path, *more: str) -> Plan:
    more = ("norm=rmsnorm,none", f"sweep.dir={tmp_path}/s", "jobs=2", *more)
    return plan([*small_but(*more), *more])


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(p): p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != "sweep.json"
    }


@pytest.mark.hazard("own: finished results are immutable")
def test_a_sweep_runs_every_cell_once_and_is_compared(tmp_path: Path) -> None:
    made, notes = two(tmp_path, "seeds=2"), Notes()
    assert run_sweep(made, notes) == 0
    assert sorted(notes.started_cells) == sorted(cell.id for cell in made.cells)
    assert set(states(made).values()) == {"ok"}
    assert notes.first is not None and notes.first.counts == "0 done, 0 running, 0 failed of 4"
    assert notes.last is not None and notes.last.counts == "4 done, 0 running, 0 failed of 4"
    assert (notes.last.skipped, notes.last.jobs, notes.interrupted) == (0, 2, False)
    assert notes.views[0].remaining is not None and notes.views[-1].remaining == 0
    ended = notes.endings[0]
    assert ended.metric == "loss" and ended.value is not None and ended.seconds > 0
    assert ended.log.read_text().endswith(" ok\n")
    found = compare(made.directory)
    assert [(row.label, row.n) for row in found.rows] == [("norm=rmsnorm", 2), ("norm=none", 2)]
    assert found.notes == [] and found.rows[1].difference is not None

    before, again = contents(made.directory), Notes()
    assert run_sweep(two(tmp_path, "seeds=2"), again) == 0
    assert again.started_cells == [] and contents(made.directory) == before
    assert again.last is not None and again.last.skipped == 4
    assert all(ended.skipped and ended.seconds > 0 for ended in again.endings)


def test_the_numbers_do_not_depend_on_the_process(tmp_path: Path) -> None:
    made = two(tmp_path)
    assert run_sweep(made) == 0
    for cell in made.cells:
        assert run.run_cell(cell, tmp_path / "here") == "ok"
        apart = (made.directory / cell.name / "metrics.jsonl").read_bytes()
        assert (tmp_path / "here" / cell.name / "metrics.jsonl").read_bytes() == apart


@pytest.mark.hazard("joblib/joblib#812")
def test_a_killed_cell_is_recorded_and_the_others_go_on(
    tmp_path: Path, works: Callable[[str], None]
) -> None:
    made, notes = two(tmp_path), Notes()
    works("crash")
    assert run_sweep(made, notes) == 1
    assert list(states(made).values()) == ["ok", "killed"]
    found = record.load(made.directory / made.cells[1].name)
    assert found.reason == "its process was killed by signal 9 (SIGKILL)"
    assert notes.last is not None and (notes.last.done, notes.last.failed) == (1, 1)

    works("plainly")
    before, later = contents(made.directory), Notes()
    assert run_sweep(made, later) == 1  # a failure is not tried again unasked
    assert later.started_cells == [] and contents(made.directory) == before
    assert later.first is not None and (later.first.skipped, later.first.failed) == (1, 1)
    assert run_sweep(made, retry_failed=True) == 0  # it is run again, and only it
    assert list(states(made).values()) == ["ok", "ok"]


@pytest.mark.hazard("hydra-ecosystem/hydra#2551")
def test_each_error_stands_in_its_own_record_and_log_while_others_wait(
    tmp_path: Path, works: Callable[[str], None]
) -> None:
    made = two(tmp_path, "seeds=2")
    made = replace(made, sweep=replace(made.sweep, jobs=1))

    class Reads(Notes):
        def ended(self, ended: Ended, view: View) -> None:
            super().ended(ended, view)
            if ended.state == "error":
                text = ended.log.read_text()
                assert "Traceback" in text and text.endswith("error: ValueError: as it must\n")
                found = record.load(ended.log.parent)
                assert (found.state, found.reason) == ("error", ended.reason)

    notes = Reads()
    works("fail")
    assert run_sweep(made, notes) == 1
    assert [ended.state for ended in notes.endings] == ["ok", "error"] * 2
    assert [view.waiting for view in notes.views] == [3, 2, 1, 0]


def test_a_cell_that_fails_is_tried_as_often_as_asked(
    tmp_path: Path, works: Callable[[str], None]
) -> None:
    made, notes = two(tmp_path, "sweep.retries=2"), Notes()
    works("crash_once")
    assert run_sweep(made, notes) == 0
    assert [(e.label, e.state) for e in notes.again_cells] == [("norm=none", "killed")]
    assert len(notes.started_cells) == 3 and len(notes.endings) == 2
    assert set(states(made).values()) == {"ok"}
    works("crash")
    other, more = two(tmp_path, "sweep.retries=2", "seeds=[7]"), Notes()
    assert run_sweep(other, more) == 1
    assert len(more.again_cells) == 2 and len(more.started_cells) == 4


@pytest.mark.hazard("hydra-ecosystem/hydra#2824")
def test_the_first_failure_may_stop_the_others(
    tmp_path: Path, works: Callable[[str], None]
) -> None:
    made, notes = two(tmp_path, "seeds=3"), Notes()
    made = replace(made, sweep=replace(made.sweep, jobs=1))
    works("crash")
    assert run_sweep(made, notes, fail_fast=True) == 1
    assert list(states(made).values()) == ["ok", "killed", *["missing"] * 4]
    works("plainly")
    assert run_sweep(made, fail_fast=True) == 1  # the old failure stands, and stops nobody
    assert Counter(states(made).values()) == {"ok": 5, "killed": 1}
    assert run_sweep(made, retry_failed=True) == 0


def test_a_cell_that_allocates_too_much_fails_alone(
    tmp_path: Path, works: Callable[[str], None]
) -> None:
    made = two(tmp_path, "sweep.memory=3")
    works("hoard")
    assert run_sweep(made) == 1
    assert states(made)[made.cells[0].id] == "ok"
    assert states(made)[made.cells[1].id] == "error"
    assert "memory" in (made.directory / made.cells[1].name / "log.txt").read_text()


@pytest.mark.hazard("hydra-ecosystem/hydra#861")
def test_a_process_that_is_spawned_knows_the_plugins(
    tmp_path: Path, install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("other-norms", ("norm", "half"), gain=0.5)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    made = plan([*SMALL, "norm=half", f"sweep.dir={tmp_path}/s"])
    assert run_sweep(made) == 0
    found = record.load(made.directory / made.cells[0].name)
    assert found.parts["norm"]["distribution"] == "other-norms"


def test_a_cell_that_takes_too_long_is_recorded(tmp_path: Path) -> None:
    made = two(tmp_path, "train.steps=1000000", "sweep.timeout=2.5")
    assert run_sweep(made) == 1
    for cell in made.cells:
        found = record.load(made.directory / cell.name)
        assert (found.state, found.reason) == ("timeout", "longer than sweep.timeout=2.5 seconds")


@pytest.mark.hazard("ray-project/ray#12347")
def test_ctrl_c_ends_in_order_and_the_next_start_goes_on(tmp_path: Path) -> None:
    request = ["train.steps=300", "run.checkpoint_every=0", "norm=rmsnorm", "jobs=1", "seeds=2"]
    made = plan([*small_but(*request), *request, f"sweep.dir={tmp_path}/s"])

    class Impatient(Notes):
        def tick(self, view: View) -> None:
            place = made.directory / made.cells[0].name / "record.json"
            if place.exists() and b'"decay' in place.read_bytes() and not self.held_cells:
                self.held_cells.append("signalled")
                os.kill(os.getpid(), signal.SIGINT)

    notes = Impatient()
    assert run_sweep(made, notes) == 130
    assert notes.interrupted
    assert list(states(made).values()) == ["interrupted", "missing"]
    assert record.load(made.directory / made.cells[0].name).reason == "asked to stop by SIGTERM"
    assert run_sweep(made) == 0


def test_cells_that_another_runner_holds_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_PAUSE", 0.05)
    made = two(tmp_path)
    place = made.directory / made.cells[0].name
    place.mkdir(parents=True)
    notes = Notes()

    def let_go() -> None:
        with lock.hold(place, 0):
            while not notes.held_cells:
                time.sleep(0.05)

    other = threading.Thread(target=let_go)
    other.start()
    assert run_sweep(made, notes) == 0
    other.join()
    assert set(notes.held_cells) == {made.cells[0].id}
    assert set(states(made).values()) == {"ok"}


def test_a_lost_record_is_a_failure_and_no_end_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runner, "close_for", full)
    made, notes = two(tmp_path, "train.steps=1000000", "sweep.timeout=2"), Notes()
    assert run_sweep(made, notes) == 1
    assert [ended.state for ended in notes.endings] == ["killed", "killed"]
    assert all("No space left on device" in ended.reason for ended in notes.endings)


@pytest.mark.hazard("own: a directory that cannot be written")
def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "s").touch()
    with pytest.raises(StoreError, match="no results can be written there"):
        run_sweep(two(tmp_path))


def test_a_file_in_the_place_of_a_run_is_an_error(tmp_path: Path) -> None:
    made = two(tmp_path)
    made.save()
    (made.directory / made.cells[1].name).touch()
    with pytest.raises(StoreError, match=f"{made.cells[1].name}: the run's directory cannot be"):
        run_sweep(made)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (["ok", "stalled", "nonfinite", "spiked"], 0),
        ([], 0),
        (["ok", "error"], 1),
        (["ok", "killed"], 1),
        (["timeout"], 1),
        (["missing"], 1),
        (["running"], 1),
        (["ok", "error", "interrupted"], 130),
    ],
)
def test_exit_codes(found: list[str], code: int) -> None:
    assert exit_code(found) == code
    assert exit_code(found, interrupted=True) == 130


def test_jobs_times_threads_are_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "cores", lambda: 8)
    notes = Notes()
    made = plan([*SMALL, "run.threads=3", f"sweep.dir={tmp_path}"])
    with monkeypatch.context() as patch:
        patch.setattr(pool.Pool, "run", lambda *arguments: False)
        assert run_sweep(made, notes) == 0
    assert notes.last is not None and notes.last.jobs == 2
    assert runner.cores() == 8


def test_cores_are_those_that_may_be_used() -> None:
    assert 1 <= runner.cores() <= (os.cpu_count() or 1)


def test_warming_up_starts_the_server_once() -> None:
    runner.warm_up()
    runner.warm_up()
