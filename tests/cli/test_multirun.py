"""`encoderkit train -m`: each launcher for real, with what may go wrong in a cell and around it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import encoderkit
from encoderkit.cli import main, multirun
from encoderkit.config.request import configure
from encoderkit.errors import StoreError
from encoderkit.sweep import lock
from encoderkit.sweep.plan import plan

SMALL = ["train=smoke", "train.steps=4", "train.warmup=1", "model.n_layers=1"]
SAID = argparse.Namespace(quiet=True, retry_failed=False)
PLUGIN = """
from dataclasses import dataclass
from encoderkit.api import Options, Part, hookimpl, option

API_VERSION = 1

@dataclass(slots=True, kw_only=True)
class How(Options):
    end: str = option("well", "how it ends")

@hookimpl
def encoderkit_parts():
    return [Part("norm", "ends", "ends.part:Ends", "", options=How)]
"""
PART = """
import os, signal, sys, time
from pathlib import Path
import torch
from encoderkit.nn import Norm

HERE = Path.cwd()

class Ends(Norm):
    def __init__(self, opts, site):
        super().__init__()
        self.end = opts.end

    def forward(self, x, ctx):
        if x.device.type == "meta":
            return x
        (HERE / f"threads-{torch.get_num_threads()}").touch()
        if self.end == "raise":
            raise ValueError("boom")
        if self.end == "exit":
            sys.exit(3)
        if self.end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.end == "chdir":
            os.chdir("/")
        if not (HERE / "go").exists():
            time.sleep(0.05)
        return x * 0.5
"""


def installed(launcher, extra, *more):
    reason = f'not installed: pip install "encoderkit[{extra}]"'
    package = f"hydra_plugins.hydra_{extra}_launcher"
    return pytest.param(
        launcher,
        *more,
        marks=pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=reason),
    )


every_launcher = pytest.mark.parametrize(
    "launcher",
    ["basic", installed("joblib", "joblib"), installed("submitit_local", "submitit")],
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stranger(install, tmp_path, monkeypatch):
    """A package whose norm ends a run in many ways, as processes of their own see it."""
    install("ends", __init__=PLUGIN, part=PART)
    kit = Path(encoderkit.__file__).resolve().parent.parent
    paths = [str(tmp_path / "site"), str(kit), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def records(root):
    found = sorted(Path(root).glob("*/record.json"))
    return [json.loads(path.read_text()) for path in found]


def curves(root):
    return {p.parent.name: p.read_bytes() for p in Path(root).glob("*/metrics.jsonl")}


def start(*words, **options):
    command = [sys.executable, "-m", "encoderkit", *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.hazard(
    "hydra-ecosystem/hydra#2551", "hydra-ecosystem/hydra#861", "own: exit(0) ends a sweep"
)
@every_launcher
def test_what_goes_wrong_in_one_cell_is_its_own(launcher, stranger):
    Path("go").touch()
    words = ["norm=ends", "norm.end=kill,raise,exit,chdir,well", *SMALL, "run.threads=2"]
    with start("train", "-m", *words, "sweep.name=m", f"hydra/launcher={launcher}") as process:
        _, err = process.communicate()
    assert process.returncode == 1, err
    found = {r["label"].partition("=")[2]: r for r in records("runs/m")}
    assert {end: r["state"] for end, r in found.items()} == {
        "kill": "killed",
        "raise": "error",
        "exit": "error",
        "chdir": "ok",
        "well": "ok",
    }
    assert found["kill"]["reason"] == "its process was killed by signal 9 (SIGKILL)"
    assert found["raise"]["reason"] == "ValueError: boom"
    assert found["exit"]["reason"] == "the run called exit(3)"
    assert {r["environment"]["isolation"] for r in found.values()} == {"process"}
    assert {path.name for path in Path().iterdir()} == {"go", "runs", "site", "threads-2"}
    assert err.startswith("To run what is not done: encoderkit train -m norm=ends ")
    assert err.endswith(" --retry-failed\n")
    before = curves("runs/m")
    command = ["train", "-m", *words, "sweep.name=m", f"hydra/launcher={launcher}"]
    with start(*command) as process:
        process.communicate()
    logs = {p.parent.name: p.read_text() for p in Path("runs").glob("m/*/log.txt")}
    assert process.returncode == 1 and curves("runs/m") == before
    assert {log.count(" started: ") for log in logs.values()} == {1}
    with start(*command, "--retry-failed") as process:
        process.communicate()
    logs = {p.parent.name: p.read_text() for p in Path("runs").glob("m/*/log.txt")}
    assert process.returncode == 1
    assert sorted(log.count(" started: ") for log in logs.values()) == [1, 1, 2, 2, 2]
    again = [word.replace("kill,raise,exit,", "") for word in words]
    assert main(["sweep", "--quiet", *again, "sweep.name=s"]) == 0
    assert len(curves("runs/s")) == 2
    assert curves("runs/s").items() <= curves("runs/m").items()


@pytest.mark.hazard("ray-project/ray#12347")
@pytest.mark.parametrize(
    "launcher,whom",
    [
        ("basic", "terminal"),
        installed("joblib", "joblib", "terminal"),
        installed("joblib", "joblib", "launching process"),
        installed("submitit_local", "submitit", "terminal"),
    ],
)
def test_an_interrupted_one_goes_on(launcher, whom, stranger):
    steps = ["train=smoke", "train.steps=30", "train.warmup=1", "model.n_layers=1"]
    words = ["norm=ends", "norm.end=well,fine", "seeds=2", "run.checkpoint_every=5", *steps]
    command = ["train", "-m", *words, "sweep.name=m", f"hydra/launcher={launcher}"]
    with start(*command, start_new_session=True) as process:
        end = time.monotonic() + 120
        while not list(Path("runs").glob("m/*/checkpoint")):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        (os.killpg if whom == "terminal" else os.kill)(process.pid, signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    stopped = {(record["state"], record["reason"]) for record in records("runs/m")}
    assert stopped == {("interrupted", "asked to stop by SIGTERM")}
    assert "interrupted. To go on: encoderkit train -m norm=ends " in err
    Path("go").touch()
    with start(*command) as process:
        _, err = process.communicate()
    assert process.returncode == 0, err
    assert [record["state"] for record in records("runs/m")] == ["ok"] * 4
    starts = [path.read_text().count(" started: ") for path in Path("runs").glob("m/*/log.txt")]
    assert max(starts) == 2
    assert [record["notes"] for record in records("runs/m")] == [[]] * 4
    before = records("runs/m")
    assert main([*command, "--quiet"]) == 0
    assert records("runs/m") == before
    assert main(["sweep", "--quiet", *words, "sweep.name=s"]) == 0
    assert curves("runs/s") == curves("runs/m")


ODD = ["a,b", "a|b&c d", 'it\'s "$HOME"', "../ü=1", "x" * 300]


@pytest.mark.hazard("hydra-ecosystem/hydra#771", "hydra-ecosystem/hydra#126")
@pytest.mark.parametrize("command", [["sweep", "jobs=2"], ["train", "-m"]])
def test_odd_values_reach_their_runs_and_come_back(command, stranger, capsys):
    Path("go").touch()
    quoted = ",".join("'" + value.replace("'", "\\'") + "'" for value in ODD)
    words = ["norm=ends", f"norm.end={quoted}", *SMALL]
    assert main([*command, *words, "sweep.name=s"]) == 0
    left = {}
    for path in Path("runs/s").glob("*/record.json"):
        found = json.loads(path.read_text())
        end = yaml.safe_load((path.parent / "config.yaml").read_text())["norm"]["end"]
        assert found["state"] == "ok" and len(path.parent.name) <= 80
        left[end] = found
    assert left.keys() == set(ODD)
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    for found in left.values():
        program, *again = shlex.split(found["reproduce"])
        assert program == "encoderkit"
        assert main([*again, "sweep.dir=runs/s", "--quiet"]) == 0
    planned = json.loads(Path("runs/s/sweep.json").read_text())
    program, *again = shlex.split(planned["command"])
    assert program == "encoderkit" and main([*again, "--quiet"]) == 0
    found = {p: p.read_bytes() for p in Path("runs").rglob("*") if p.is_file()}
    changed = {path.name for path in before if found.pop(path) != before[path]}
    assert changed <= {"sweep.json"} and not found


def test_a_process_ends_with_its_launcher(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    with lock.hold(place, 0.0):
        assert not multirun.is_over(place)
    assert multirun.is_over(place)
    code = (
        "import sys, time; from pathlib import Path; from encoderkit.cli import multirun\n"
        "multirun.GRACE = 0.1; multirun._end_without(Path(sys.argv[1])); time.sleep(60)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(place)]).returncode == 1


def test_a_run_ends_with_the_launching_process(tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir()
    with lock.hold(place, 0.0):
        assert not multirun.Leash(place, True).stop()
    assert multirun.Leash(place, True).stop() and multirun.Leash(tmp_path / "gone", True).stop()
    asked = plan(SMALL)
    with pytest.raises(KeyboardInterrupt):
        multirun._job(asked, place, os.getpid(), SAID, configure(*SMALL))
    monkeypatch.setattr(multirun, "_end_without", lambda place: None)  # this is no worker
    assert multirun._job(asked, tmp_path / "gone", 0, SAID, configure(*SMALL)) is None
    assert list(tmp_path.iterdir()) == [place]


def test_a_point_that_is_not_planned_is_refused(tmp_path):
    asked = replace(plan(SMALL), directory=tmp_path / "m")
    with lock.hold(tmp_path, 0.0), pytest.raises(StoreError, match="is not in its plan"):
        multirun._job(asked, tmp_path, os.getpid(), SAID, configure(*SMALL, "norm=rmsnorm"))


def test_what_a_launcher_loses_is_named(capsys, monkeypatch):
    monkeypatch.setattr(multirun, "multirun", lambda *_: ["the launcher failed: E: why"])
    assert main(["train", "-m", *SMALL, "sweep.name=m"]) == 1
    printed = capsys.readouterr()
    assert printed.out.endswith("1 missing\n")
    assert printed.err.startswith("lost: the launcher failed: E: why\nTo run what is not done: ")


@pytest.mark.parametrize(
    ("launcher", "jobs", "told"),
    [
        ("joblib", "jobs=3", ["hydra.launcher.n_jobs=3"]),
        ("joblib", "run.threads=1000", ["hydra.launcher.n_jobs=1"]),
        (
            "submitit_local",
            "jobs=2",
            ["hydra.sweeper.max_batch_size=2", "hydra.launcher.timeout_min=525600"],
        ),
        ("basic", "jobs=1", []),
    ],
)
def test_a_launcher_is_told_how_many_run_at_once(launcher, jobs, told, monkeypatch):
    seen = []
    monkeypatch.setattr(multirun, "check_launcher", lambda composer, words: launcher)
    monkeypatch.setattr(multirun, "multirun", lambda words, *_: seen.extend(words) or [])
    assert main(["train", "-m", *SMALL, "sweep.name=m", jobs, "hydra.launcher.x=1"]) == 1
    assert seen[: len(told) + 1] == [*told, "hydra.launcher.x=1"]


def test_basic_runs_one_at_a_time(capsys):
    assert main(["train", "-m", *SMALL, "jobs=2"]) == 2
    assert capsys.readouterr().err == (
        "ConfigError: jobs=2: Hydra's launcher `basic` runs one cell at a time. "
        "Type hydra/launcher=joblib.\n"
    )
    assert list(Path().iterdir()) == []


def test_multirun_writes_the_same_records(capsys):
    words = ["norm=layernorm,rmsnorm", "seeds=2", "sweep.name=m", *SMALL]
    assert main(["train", "-m", *words]) == 0
    assert [record["state"] for record in records("runs/m")] == ["ok"] * 4
    assert {record["environment"]["isolation"] for record in records("runs/m")} == {"process"}
    assert [path.name for path in Path().iterdir()] == ["runs"]
    out = capsys.readouterr().out
    assert "norm=layernorm  2  2 ok" in out
    lines = [text for text in out.splitlines() if re.match(r"norm=\w+ seed=\d ok loss", text)]
    assert len(lines) == 4 and "best" not in "".join(lines)
    assert out.endswith("again: encoderkit compare runs/m\n")
    before = records("runs/m")
    assert main(["sweep", "--quiet", *words]) == 0
    assert records("runs/m") == before
    assert "again: " not in capsys.readouterr().out


def test_multirun_compares_nothing_when_a_run_left_no_record(capsys, monkeypatch):
    monkeypatch.setattr("encoderkit.cli.multirun.states", lambda plan: {"a": "ok", "b": "missing"})
    assert main(["train", "-m", *SMALL, "sweep.name=m"]) == 1
    printed = capsys.readouterr()
    assert printed.out.endswith("1 ok, 1 missing\n")
    assert printed.err.startswith("To run what is not done: encoderkit train -m ")


def test_multirun_takes_the_axes_of_an_experiment(capsys, tmp_path):
    (tmp_path / "c" / "experiment").mkdir(parents=True)
    (tmp_path / "c" / "experiment" / "e.yaml").write_text(
        "# @package _global_\nhydra: {sweeper: {params: {norm: 'layernorm,rmsnorm', seeds: '2'}}}\n"
        "sweep: {name: e}\n"
    )
    assert main(["train", "-m", "experiment=e", "--config-dir", "c", *SMALL]) == 0
    out = capsys.readouterr().out
    assert out.startswith("4 runs of 2 variants in runs/e\n") and "\n4 ok\n" in out
    assert len(records("runs/e")) == 4


def test_multirun_refuses_before_anything_is_written(capsys):
    assert main(["train", "-m", *SMALL, "hydra.callbacks.x._target_=evil.C"]) == 2
    assert main(["train", "-m", *SMALL, "hydra/launcher=nope"]) == 2
    assert list(Path().iterdir()) == []


def test_multirun_reports_illegal_cells_before_hydra_starts(capsys):
    words = ["norm=layernorm,rmsnrm", "model.n_heads=5"]
    assert main(["train", "-m", *words]) == 2
    err = capsys.readouterr().err
    assert "norm=rmsnrm" in err
    assert "model.n_heads=5" in err
    assert list(Path().iterdir()) == []
