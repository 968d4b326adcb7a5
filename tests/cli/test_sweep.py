"""`encoderkit sweep` and `encoderkit compare`, for real."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from encoderkit.cli import main
from encoderkit.cli.sweep import Live, planning
from encoderkit.sweep.best import Best
from encoderkit.sweep.plan import plan
from encoderkit.sweep.runner import View

SMALL = ["train=smoke", "train.steps=4", "train.warmup=1", "model.n_layers=1", "sweep.name=s"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_sweep_then_compare(capsys):
    words = ["norm=layernorm,rmsnorm", "seeds=2", "sweep.baseline=norm=rmsnorm", *SMALL]
    assert main(["sweep", *words]) == 0
    out = capsys.readouterr().out
    assert "4 runs of 2 variants in runs/s" in out
    assert "[4/4] " in out
    assert "baseline: norm=rmsnorm" in out
    assert "\nsort: 4 steps of 8 sequences, seeds 0, 1; lower loss is better (trivial 2." in out
    assert out.endswith("again: encoderkit compare runs/s\n")
    assert main(["sweep", *words]) == 0
    assert "4 were done before" in capsys.readouterr().out
    assert main(["compare", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in found["rows"]] == ["norm=rmsnorm", "norm=layernorm"]
    assert found["rows"][1]["difference"]["pairs"] == 2
    assert main(["compare", "runs/s", "--csv"]) == 0
    assert capsys.readouterr().out.startswith("variant,n,states,")


def test_a_failed_cell_is_a_state_and_the_others_go_on(capsys, tmp_path):
    (tmp_path / "conf" / "position").mkdir(parents=True)
    preset = tmp_path / "conf" / "position" / "short.yaml"
    preset.write_text("defaults: [learned, _self_]\nmax_len: 8\n")
    words = ["position=short,none", *SMALL, "--config-dir", str(tmp_path / "conf")]
    assert main(["sweep", *words]) == 1
    out = capsys.readouterr().out
    assert "position=short seed=0 error in" in out
    assert "position=none seed=0 ok loss" in out
    states = {
        json.loads(path.read_text())["label"]: json.loads(path.read_text())["state"]
        for path in Path("runs/s").glob("*/record.json")
    }
    assert states == {"position=short": "error", "position=none": "ok"}


def test_one_run_is_singular(capsys):
    assert main(["sweep", *SMALL, "--quiet"]) == 0
    assert main(["sweep", *SMALL]) == 0
    assert "1 run of 1 variant in runs/s" in capsys.readouterr().out


def test_the_moving_line_says_how_fast_and_what_leads(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    best = Best("sort", "loss", 0.25, "norm=none", 1)
    view = View(
        cells=9,
        skipped=1,
        done=4,
        failed=1,
        running=2,
        waiting=2,
        jobs=2,
        seconds=30.4,
        remaining=12.3,
        tokens_per_second=12345.6,
        best=(best,),
    )
    out = io.StringIO()
    Live(out).tick(view)
    assert out.getvalue() == (
        "\r\x1b[K4 done, 2 running, 1 failed of 9 after 30 s, about 12 s left; "
        "12,346 tokens/s a run; best sort loss 0.2500: norm=none seed=1"
    )
    monkeypatch.setenv("COLUMNS", "20")
    out = io.StringIO()
    Live(out).tick(view)  # one that wraps could not be written over
    assert out.getvalue() == "\r\x1b[K4 done, 2 running, "[: 4 + 19]
    bare = replace(view, remaining=None, tokens_per_second=None, best=())
    monkeypatch.setenv("COLUMNS", "200")
    out = io.StringIO()
    Live(out).tick(bare)
    assert out.getvalue() == "\r\x1b[K4 done, 2 running, 1 failed of 9 after 30 s"


@pytest.mark.parametrize(
    "terminal,quiet,patience,said",
    [
        (
            True,
            False,
            9.0,
            "\r\x1b[Kplanning: 0 of 2 checked\r\x1b[Kplanning: 1 of 2 checked\r\x1b[K",
        ),
        (True, True, 9.0, ""),
        (False, False, 9.0, ""),
        (False, False, 0.0, "planning: 0 of 2 checked\nplanning: 1 of 2 checked\n"),
    ],
)
def test_a_long_plan_says_how_far_it_is(terminal, quiet, patience, said, capsys, monkeypatch):
    monkeypatch.setattr("encoderkit.cli.sweep.PATIENCE", patience)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with planning(quiet) as told:
        plan(["norm=none,rmsnorm", *SMALL], told=told)
    assert capsys.readouterr().err == said


def test_a_line_says_when_its_cell_leads(capsys):
    assert main(["sweep", "norm=layernorm,none", *SMALL, "jobs=1"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    values = [float(line.split(" loss ")[1].split()[0]) for line in lines]
    assert ", the best so far" in lines[0]
    assert (", the best so far" in lines[1]) == (values[1] < values[0])


def test_faults_of_axes_and_values_come_together(capsys):
    assert main(["sweep", "norm=glob(x*)", "ffn.width=-2", *SMALL]) == 2
    err = capsys.readouterr().err
    assert "norm=glob(x*): matches nothing" in err
    assert "ffn.width=-2: must be at least 1" in err
