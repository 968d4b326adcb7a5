"""Cells that leave, abort, never end or take all memory: each fails alone, and in words."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path

import drill
import pytest

from encoderkit.report.table import compare
from encoderkit.sweep import record, store
from encoderkit.sweep.plan import plan
from encoderkit.sweep.runner import Observer, View, run_sweep, states

CATALOGUE = """
from encoderkit.api import Part, hookimpl

API_VERSION = 1
BAD = ("Leaves", "Quits", "Aborts", "Stays", "Hoards", "Detaches", "Interrupts", "Unwinds")
BAD += ("Orphans", "Babbles")

@hookimpl
def encoderkit_parts():
    return [Part("norm", name.lower(), f"bad_norms.part:{name}", "") for name in BAD]
"""
PARTS = """
import os, signal, stat, sys, time
import torch
from encoderkit.nn import Norm

class Bad(Norm):
    def forward(self, x, ctx):
        if not x.is_meta:
            self.act()
        return x

class Leaves(Bad):
    def act(self): sys.exit(0)

class Quits(Bad):
    def act(self): sys.exit(3)

class Aborts(Bad):
    def act(self): os.abort()

class Stays(Bad):
    def act(self):
        while True:
            pass

class Detaches(Bad):
    def act(self):
        if os.fork() == 0:
            os.setsid()
            time.sleep(20)
        os._exit(1)

class Interrupts(Bad):
    def act(self): raise KeyboardInterrupt

class Unwinds(Bad):
    def act(self): raise BaseException("of my own")

class Orphans(Bad):
    def act(self):
        os.kill(os.getppid(), signal.SIGKILL)  # the server that it was forked from
        time.sleep(20)

class Babbles(Bad):
    def act(self):
        for number in range(3, 64):
            try:
                if stat.S_ISFIFO(os.fstat(number).st_mode):
                    os.set_blocking(number, False)
                    os.write(number, b"no answer" * 9)
            except OSError:
                pass
        os._exit(0)

class Hoards(Bad):
    def act(self): torch.ones(10 * 2**30, dtype=torch.uint8)
"""


@pytest.fixture
def bad(install: Callable[..., Path]) -> None:
    install("bad-norms", __init__=CATALOGUE, part=PARTS)


@pytest.mark.hazard("own: exit(0) ends a sweep", "own: never-ending and all-consuming cells")
def test_each_fails_alone_and_says_how(bad: None, tmp_path: Path) -> None:
    words = ["norm=leaves,quits,aborts,hoards,layernorm", "sweep.memory=3", "jobs=2"]
    made = plan([*drill.SMALL, *words, f"sweep.dir={tmp_path}/s"])
    assert run_sweep(made) == 1
    found = {cell.label: record.load(made.directory / cell.name) for cell in made.cells}
    assert {label: (each.state, each.reason) for label, each in found.items()} == {
        "norm=leaves": ("error", "the run called exit(0)"),
        "norm=quits": ("error", "the run called exit(3)"),
        "norm=aborts": ("killed", "its process was killed by signal 6 (SIGABRT)"),
        "norm=hoards": ("error", found["norm=hoards"].reason),
        "norm=layernorm": ("ok", ""),
    }
    assert "memory" in found["norm=hoards"].reason
    assert "Aborted" in (made.directory / made.cells[2].name / "log.txt").read_text()
    assert set(drill.starts(made.directory).values()) == {1}
    (row,) = [row for row in compare(made.directory).rows if row.n]
    assert (row.label, row.n) == ("norm=layernorm", 1)  # the others are named, and no numbers
    before = drill.finished(made.directory)
    assert run_sweep(made) == 1 and drill.finished(made.directory) == before


@pytest.mark.hazard("own: never-ending and all-consuming cells")
def test_one_that_never_ends_is_ended(bad: None, tmp_path: Path) -> None:
    words = ["norm=stays", "sweep.timeout=1.5", f"sweep.dir={tmp_path}/s"]
    made = plan([*drill.SMALL, *words])
    assert run_sweep(made) == 1
    assert list(states(made).values()) == ["timeout"]
    reason = record.load(made.directory / made.cells[0].name).reason
    assert reason == "longer than sweep.timeout=1.5 seconds"


def test_a_process_that_outlives_its_cell_holds_nothing(bad: None, tmp_path: Path) -> None:
    words = ["norm=detaches", "sweep.retries=1", f"sweep.dir={tmp_path}/s"]
    made = plan([*drill.SMALL, *words])
    began = time.monotonic()
    assert run_sweep(made) == 1
    assert time.monotonic() - began < 15  # and not the 20 s of the process that went away
    (found,) = store.records(made.directory).records
    assert (found.state, found.reason) == ("killed", "its process ended with exit code 1")
    assert list(drill.starts(made.directory).values()) == [2]


def test_what_a_part_raises_is_its_own_error(bad: None, tmp_path: Path) -> None:
    made = plan([*drill.SMALL, "norm=interrupts,unwinds", "jobs=2", f"sweep.dir={tmp_path}/s"])
    assert run_sweep(made) == 1
    found = {each.label: each for each in store.records(made.directory).records}
    assert {label: (each.state, each.reason) for label, each in found.items()} == {
        "norm=interrupts": ("error", "KeyboardInterrupt"),
        "norm=unwinds": ("error", "BaseException: of my own"),
    }
    assert all("in act" in each.traceback for each in found.values())


class Killing(Observer):
    """Kills the server that cells are forked from, once, when all of them train."""

    def __init__(self, root: Path) -> None:
        self.root, self.done = root, False

    def tick(self, view: View) -> None:
        if not self.done and len(list(self.root.glob("*/checkpoint"))) == view.cells:
            os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
            self.done = True


def test_cells_that_lose_their_server_run_again_unasked(tmp_path: Path) -> None:
    long = ["train.steps=400" if word.startswith("train.steps=") else word for word in drill.SMALL]
    words = [*long, "norm=rmsnorm,layernorm", "jobs=2"]
    one, other = (plan([*words, f"sweep.dir={tmp_path}/{name}"]) for name in "ab")
    assert run_sweep(one, observer := Killing(one.directory)) == 0 and observer.done
    assert set(drill.starts(one.directory).values()) == {2}
    assert run_sweep(other) == 0
    assert drill.found(one.directory) == drill.found(other.directory)


def test_one_that_ends_the_server_each_time_fails_alone(bad: None, tmp_path: Path) -> None:
    made = plan([*drill.SMALL, "norm=orphans,layernorm", "jobs=1", f"sweep.dir={tmp_path}/s"])
    assert run_sweep(made) == 1
    found = {each.label: each for each in store.records(made.directory).records}
    assert found["norm=layernorm"].state == "ok"
    assert found["norm=orphans"].state == "killed"
    assert found["norm=orphans"].reason == "the server that its process came from is gone"
    assert drill.starts(made.directory)[made.cells[0].name] == 2


def test_one_that_writes_into_every_pipe_fails_alone(bad: None, tmp_path: Path) -> None:
    made = plan([*drill.SMALL, "norm=babbles,layernorm", "jobs=1", f"sweep.dir={tmp_path}/s"])
    assert run_sweep(made) == 1
    found = {each.label: each.state for each in store.records(made.directory).records}
    assert found == {"norm=babbles": "killed", "norm=layernorm": "ok"}
