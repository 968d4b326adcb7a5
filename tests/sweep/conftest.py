"""A tiny sweep, run once, for the tests that look at a results directory."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from encoderkit.sweep.plan import Plan, plan
from encoderkit.sweep.run import run_cell

CELLS = 14
SMALL = ["train.steps=4", "train.batch=2", "train.warmup=1", "train.eval_every=0"]
SMALL += ["model.d_model=16", "model.n_layers=1", "model.n_heads=2", "train.judge_stall=false"]
SMALL += ["run.checkpoint_every=1"]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A sweep whose every cell ended ok; nobody may change its directory."""
    root = tmp_path_factory.mktemp("undisturbed") / "s"
    made = plan([*SMALL, "norm=rmsnorm,none", f"seeds={CELLS // 2}", f"sweep.dir={root}"])
    made.save()
    assert [run_cell(cell, root) for cell in made] == ["ok"] * CELLS
    return made


@pytest.fixture
def sweep(undisturbed: Plan, tmp_path: Path) -> Plan:
    """The same sweep in a directory of one's own."""
    root = tmp_path / "s"
    shutil.copytree(undisturbed.directory, root)
    return dataclasses.replace(undisturbed, directory=root)


@pytest.fixture
def half() -> Callable[[Plan, int], Path]:
    """Run a cell of a sweep to its middle only, and return its directory."""

    def run(asked: Plan, n: int) -> Path:
        cell = asked.cells[n]
        shutil.rmtree(asked.directory / cell.name, ignore_errors=True)
        polls = iter(["", ""])
        assert run_cell(cell, asked.directory, stop=lambda: next(polls, "enough")) == "interrupted"
        return asked.directory / cell.name

    return run
