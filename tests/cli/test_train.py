"""`encoderkit train`: one run, resumed, and under Hydra's multirun."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from encoderkit.cli import main

SMALL = ["train=smoke", "train.steps=4", "train.warmup=1", "model.n_layers=1"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def records(root="runs/train"):
    found = sorted(Path(root).glob("*/record.json"))
    return [json.loads(path.read_text()) for path in found]


def test_one_run_leaves_its_directory_and_nothing_else(capsys):
    assert main(["train", *SMALL, "norm=rmsnorm"]) == 0
    (record,) = records()
    assert (record["state"], record["steps"]) == ("ok", 4)
    assert record["parts"]["norm"]["part"] == "rmsnorm"
    assert [path.name for path in Path().iterdir()] == ["runs"]
    (directory,) = Path("runs/train").iterdir()
    names = {path.name for path in directory.iterdir()}
    assert names - {".lock"} == {
        "config.yaml",
        "record.json",
        "metrics.jsonl",
        "log.txt",
        "checkpoint",
    }
    out = capsys.readouterr().out
    assert out.startswith("ok: loss ")
    assert str(directory) in out


def test_done_runs_are_not_repeated(capsys):
    assert main(["train", *SMALL]) == 0
    (before,) = records()
    assert capsys.readouterr().err.startswith("step 1/4 loss ")
    assert main(["train", *SMALL]) == 0
    assert records() == [before]
    printed = capsys.readouterr()
    day, time = before["ended"].split("T")
    assert printed.out.startswith(f"already done (ended {day} {time[:5]} UTC)\nok: loss ")
    assert printed.err == ""


def test_a_record_without_its_end_is_done_all_the_same(capsys):
    assert main(["train", *SMALL]) == 0
    (path,) = Path("runs/train").glob("*/record.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ended": None}))
    capsys.readouterr()
    assert main(["train", *SMALL]) == 0
    assert capsys.readouterr().out.startswith("already done (ended at an unknown time)\n")


def test_quiet_prints_no_progress(capsys):
    assert main(["train", *SMALL, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["train", *SMALL]) == 0
    err = capsys.readouterr().err
    assert "4/4" in err and "nan" not in err and "step 1/4 loss" not in err
    assert main(["train", *SMALL]) == 0
    assert capsys.readouterr().err == ""


def test_a_run_that_fails_names_its_log(capsys):
    Path("c/position").mkdir(parents=True)
    Path("c/position/short.yaml").write_text("defaults: [learned, _self_]\nmax_len: 8\n")
    assert main(["train", *SMALL, "position=short", "--config-dir", "c"]) == 1
    (log,) = Path("runs/train").glob("*/log.txt")
    assert f"What happened: {log}\n" in capsys.readouterr().err


def test_a_run_that_another_process_has_is_held(capsys, monkeypatch):
    monkeypatch.setattr("encoderkit.cli.train.run_cell", lambda *_, **__: "held")
    assert main(["train", *SMALL]) == 1
    assert capsys.readouterr().err.startswith("another process runs runs/train/")


def test_resume_reads_the_directory(capsys):
    assert main(["train", *SMALL]) == 0
    (directory,) = Path("runs/train").iterdir()
    assert main(["train", f"resume={directory}"]) == 0
    assert "4 steps" in capsys.readouterr().out


def test_resume_takes_no_other_words(capsys):
    assert main(["train", "resume=x", "norm=rmsnorm"]) == 2
    assert "norm=rmsnorm: a resumed run keeps its configuration." in capsys.readouterr().err


def test_one_failed_run_runs_again_unasked(capsys):
    assert main(["train", "--retry-failed", *SMALL]) == 2
    assert (
        "--retry-failed: belongs to -m; one run that failed runs again" in capsys.readouterr().err
    )


def test_a_run_that_turns_nan_says_so(capsys):
    assert main(["train", *SMALL, "train.lr=1e30", "train.clip=null"]) == 0
    assert capsys.readouterr().out.startswith("nonfinite (")


@pytest.mark.hazard("hydra-ecosystem/hydra#3259")
@pytest.mark.parametrize("command", ["train", "train -m", "sweep"])
def test_an_experiment_runs_no_code(command, capsys, tmp_path, monkeypatch):
    (tmp_path / "c" / "experiment").mkdir(parents=True)
    (tmp_path / "evil.py").write_text("open('ran', 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "c" / "experiment" / "e.yaml").write_text(
        "# @package _global_\nhydra: {callbacks: {x: {_target_: evil.C}}}\n"
    )
    assert main([*command.split(), "experiment=e", "--config-dir", "c", *SMALL]) == 2
    assert capsys.readouterr().err == (
        "ConfigError: experiment=e: sets hydra.callbacks, and an experiment may set "
        "hydra.sweeper.params alone, its axes. Remove it.\n"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"c", "evil.py"}
