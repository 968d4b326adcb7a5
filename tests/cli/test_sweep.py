"""`encoderkit sweep` and `encoderkit compare`, for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from encoderkit.cli import main

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


def test_faults_of_axes_and_values_come_together(capsys):
    assert main(["sweep", "norm=glob(x*)", "ffn.width=-2", *SMALL]) == 2
    err = capsys.readouterr().err
    assert "norm=glob(x*): matches nothing" in err
    assert "ffn.width=-2: must be at least 1" in err
