"""SIGKILL the runner, start again at once: nothing is lost, nothing is done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from encoderkit.sweep.plan import plan
from encoderkit.sweep.runner import run_sweep

STEPS = 120
REQUEST = [
    *[f"train.steps={STEPS}", "train.warmup=1", "train.eval_every=0", "train.judge_stall=false"],
    *["model.d_model=16", "model.n_layers=1", "model.n_heads=2", "run.checkpoint_every=20"],
    *["norm=layernorm,rmsnorm", "seeds=2", "jobs=2"],
]
RUNNER = """
import sys
from encoderkit.sweep.plan import plan
from encoderkit.sweep.runner import run_sweep, warm_up
if __name__ == "__main__":
    warm_up()
    sys.exit(run_sweep(plan(sys.argv[1:])))
"""


def start(root: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", RUNNER, *REQUEST, f"sweep.dir={root}"])


def group_of(runner: int) -> set[int]:
    """Return the processes below a runner, and the runner."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid=,stat="], capture_output=True, text=True)
    rows = [line.split() for line in table.stdout.splitlines()]
    found = {runner}
    while more := {int(p) for p, q, s in rows if int(q) in found and s[0] != "Z"} - found:
        found |= more
    return found


def running(pids: set[int]) -> set[int]:
    table = subprocess.run(["ps", "-eo", "pid=,stat="], capture_output=True, text=True)
    rows = [line.split() for line in table.stdout.splitlines()]
    return {int(pid) for pid, state in rows if state[0] != "Z"} & pids


def cells(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob("*/config.yaml"))


def steps(place: Path) -> list[int]:
    lines = (place / "metrics.jsonl").read_bytes().splitlines()
    return [m["step"] for m in map(json.loads, lines) if m["name"] == "train/loss"]


def done(root: Path) -> dict[Path, bytes]:
    """Return the files of the cells that have ended as results."""
    places = [
        place
        for place in cells(root)
        if (place / "record.json").exists()
        and json.loads((place / "record.json").read_bytes())["state"] == "ok"
    ]
    return {p: p.read_bytes() for place in places for p in place.rglob("*") if p.is_file()}


def wait_until(root: Path, enough: int) -> None:
    """Wait until all cells together have come `enough` steps far."""
    end = time.monotonic() + 60
    while sum(len(p.read_bytes().splitlines()) for p in root.glob("*/metrics.jsonl")) < enough:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("undisturbed")
    assert run_sweep(plan([*REQUEST, f"sweep.dir={root}"])) == 0
    return {p.parent.name: p.read_bytes() for p in root.glob("*/metrics.jsonl")}


@pytest.mark.hazard("ray-project/ray#12347")
def test_a_runner_killed_three_times_loses_nothing(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    kept: dict[Path, bytes] = {}
    runner = start(tmp_path)
    try:
        for moment in (50, 300, 700):
            wait_until(tmp_path, moment)
            family = group_of(runner.pid)
            runner.kill()
            killed = time.monotonic()
            runner.wait()
            runner = start(tmp_path)  # at once: the children of the first may still be there
            assert len(family) > 1
            while left := running(family):
                assert time.monotonic() - killed < 1, left
                time.sleep(0.02)
            kept |= done(tmp_path)
        assert runner.wait(120) == 0
    finally:
        runner.kill()
        runner.wait()
    assert len(cells(tmp_path)) == 4
    for place in cells(tmp_path):
        assert steps(place) == list(range(1, STEPS + 1))
        assert (place / "metrics.jsonl").read_bytes() == undisturbed[place.name]
    assert {path: path.read_bytes() for path in kept} == kept


def test_ctrl_c_while_the_server_warms_up_ends_the_sweep_in_words(tmp_path: Path) -> None:
    late = RUNNER.replace("    warm_up()\n", "")
    command = [sys.executable, "-c", late, *REQUEST, f"sweep.dir={tmp_path}"]
    # A session of its own: Ctrl-C reaches the runner, its server and their children alike.
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as runner:
        while not (tmp_path / "sweep.json").exists():
            assert runner.poll() is None
            time.sleep(0.01)
        time.sleep(0.5)
        os.killpg(runner.pid, signal.SIGINT)
        _, said = runner.communicate(timeout=60)
    assert (runner.returncode, said) == (130, b"")
