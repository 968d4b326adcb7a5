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

import drill
import pytest
from drill import Found, Make

from encoderkit.sweep import record, runner
from encoderkit.sweep.runner import Observer, View, run_sweep, states

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


class Waking(Observer):
    """Wakes the stopped cell once it is seen to be stopped."""

    def __init__(self, word: Path) -> None:
        self.word, self.woken = word, 0

    def tick(self, view: View) -> None:
        if not self.woken and self.word.exists() and (text := self.word.read_text()):
            if state_of(int(text)) == "T":
                self.woken = int(text)
                os.kill(self.woken, signal.SIGCONT)


def test_a_cell_that_comes_back_in_time_goes_on(
    make: Make, undisturbed: dict[str, Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, waking = make(1), Waking(tmp_path / "stopped")
    monkeypatch.setattr(runner, "_in_process", partial(drill.stopping_at, STOP_AT, tmp_path))
    assert run_sweep(plan, waking) == 0 and waking.woken
    assert drill.found(plan.directory) == {c.name: undisturbed[c.name] for c in plan.cells}


def test_one_that_does_not_is_ended_and_cannot_come_back(
    make: Make, undisturbed: dict[str, Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make(1)
    patient, plan = plan, replace(plan, sweep=replace(plan.sweep, timeout=3.0))
    monkeypatch.setattr(runner, "_in_process", partial(drill.stopping_at, STOP_AT, tmp_path))
    assert run_sweep(plan) == 1
    assert list(states(plan).values()) == ["timeout"]
    if (tmp_path / "stopped").exists():  # else the machine was too slow to come that far
        assert state_of(int((tmp_path / "stopped").read_text())) == ""
    before = record.load(plan.directory / plan.cells[0].name)
    assert before.state == "timeout"
    assert run_sweep(patient, retry_failed=True) == 0
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
