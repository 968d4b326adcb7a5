"""Cells that leave, abort, never end or take all memory: each fails alone, and in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import drill
import pytest

from encoderkit.report.table import compare
from encoderkit.sweep import record
from encoderkit.sweep.plan import plan
from encoderkit.sweep.runner import run_sweep, states

CATALOGUE = """
from encoderkit.api import Part, hookimpl

API_VERSION = 1
BAD = ("Leaves", "Quits", "Aborts", "Stays", "Hoards")

@hookimpl
def encoderkit_parts():
    return [Part("norm", name.lower(), f"bad_norms.part:{name}", "") for name in BAD]
"""
PARTS = """
import os, sys
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
