"""Processes that are stopped (Ctrl-Z, a paused container) and come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import drill
import pytest
from drill import Found, Make

from encoderkit.sweep import pool, record, runner
from encoderkit.sweep.runner import Observer, View, run_sweep

STOP_AT = 60  # a moment between the first checkpoint and the end


def state_of(pid: int) -> str:
    """Return T for a process that is stopped, and nothing for one that is gone or unburied."""
    look = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    found = look.stdout.strip()[:1]
    return "" if found == "Z" else found


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


class Seeing(Observer):
    """Acts once the cell that leaves its word there is seen to be stopped."""

    def __init__(self, word: Path, act: Callable[[int], None]) -> None:
        self.word, self.act, self.seen = word, act, 0

    def tick(self, view: View) -> None:
        text = self.word.read_text() if self.word.exists() and not self.seen else ""
        if text and state_of(int(text)) == "T":
            self.seen = int(text)
            self.act(self.seen)


def test_a_cell_that_comes_back_in_time_goes_on(
    make: Make, undisturbed: dict[str, Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make(1)
    waking = Seeing(tmp_path / "stopped", lambda pid: os.kill(pid, signal.SIGCONT))
    monkeypatch.setattr(runner, "_in_process", partial(drill.stopping_at, STOP_AT, tmp_path))
    assert run_sweep(plan, waking) == 0 and waking.seen
    assert drill.found(plan.directory) == {c.name: undisturbed[c.name] for c in plan.cells}


def test_one_that_does_not_is_ended_and_cannot_come_back(
    make: Make, undisturbed: dict[str, Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make(1)
    plan = replace(plan, sweep=replace(plan.sweep, timeout=3600.0))
    monkeypatch.setattr(runner, "_in_process", partial(drill.stopping_at, STOP_AT, tmp_path))
    late = [0.0]  # the pool's clock jumps once the cell is stopped, so that nobody has to wait
    clock = SimpleNamespace(sleep=time.sleep, monotonic=lambda: time.monotonic() + late[0])
    monkeypatch.setattr(pool, "time", clock)
    seeing = Seeing(tmp_path / "stopped", lambda pid: late.append(late.pop() + 7200.0))
    assert run_sweep(plan, seeing) == 1 and seeing.seen
    assert state_of(seeing.seen) == ""
    found = record.load(plan.directory / plan.cells[0].name)
    assert (found.state, found.reason) == ("timeout", "longer than sweep.timeout=3600 seconds")
    late[0] = 0.0
    assert run_sweep(plan, retry_failed=True) == 0
    assert drill.found(plan.directory) == {c.name: undisturbed[c.name] for c in plan.cells}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread must get to run")
def test_one_whose_runner_is_killed_goes_with_it(
    make: Make, undisturbed: dict[str, Found], tmp_path: Path
) -> None:
    plan = make(2)
    process = drill.start(plan, 0, partial(drill.stopping_at, STOP_AT, tmp_path))
    word = tmp_path / "stopped"
    until(lambda: word.exists() and word.read_text() and state_of(int(word.read_text())) == "T")
    process.kill()
    process.join(60)
    until(lambda: state_of(int(word.read_text())) == "")
    assert run_sweep(plan) == 0
    assert drill.found(plan.directory) == {c.name: undisturbed[c.name] for c in plan.cells}


def test_a_runner_that_was_stopped_while_another_went_on(
    make: Make, undisturbed: dict[str, Found], tmp_path: Path
) -> None:
    plan = replace(make(4), sweep=replace(make(4).sweep, jobs=1))
    process = drill.start(plan, 0, None, None, tmp_path / "first")
    until((tmp_path / "first").exists)  # the runner stops itself after its first cell
    until(lambda: state_of(int(process.pid or 0)) == "T")
    assert run_sweep(plan) == 0
    before = drill.finished(plan.directory)
    os.kill(int(process.pid or 0), signal.SIGCONT)
    process.join(60)
    assert process.exitcode == 0
    assert drill.finished(plan.directory) == before
    assert drill.found(plan.directory) == {c.name: undisturbed[c.name] for c in plan.cells}
    assert set(drill.starts(plan.directory).values()) == {1}
