"""`encoderkit doctor`: its lines, its exit codes, and a sweep that is whole again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from encoderkit.cli import main
from encoderkit.sweep import lock

SMALL = ["train=smoke", "train.steps=4", "train.warmup=1", "model.n_layers=1", "sweep.name=s"]
WORDS = ["sweep", "norm=layernorm,none", *SMALL, "--quiet"]


@pytest.fixture
def places(tmp_path, monkeypatch, capsys):
    """The two run directories of a tiny sweep."""
    monkeypatch.chdir(tmp_path)
    assert main(WORDS) == 0
    capsys.readouterr()
    return sorted(each for each in Path("runs/s").iterdir() if each.is_dir())


def test_damage_is_listed_repaired_and_run_again(places, capsys):
    assert main(["doctor", "runs/s"]) == 0
    assert capsys.readouterr().out == "runs/s: all is well\n"
    before = [(each / "metrics.jsonl").read_bytes() for each in places]
    (places[0] / "record.json").write_bytes(b"")
    (places[1] / "\x1b[31m.txt").touch()
    assert main(["doctor", "runs/s"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"zero-byte: {places[0].name}: a run with an empty record.json; the next sweep runs the "
        "cell anew. --repair moves it into .doctor/.",
        f"zero-byte: {places[1].name}/\\x1b[31m.txt: what no run writes; nobody reads it. --repair "
        "moves it into .doctor/.",
        "runs/s: 2 faults, 2 that --repair can put right",
    ]
    assert main(["doctor", "runs/s", "--repair"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (ward,) = Path("runs/s/.doctor").iterdir()
    assert lines[0].endswith(f"Repaired: moved to .doctor/{ward.name}/{places[0].name}.")
    assert lines[-1] == "runs/s: 2 faults, 2 repaired"
    assert main(["doctor", "runs/s", "--repair"]) == 0
    assert capsys.readouterr().out == "runs/s: all is well\n"
    assert main(WORDS) == 0
    assert [(each / "metrics.jsonl").read_bytes() for each in places] == before
    assert main(["doctor", "runs/s"]) == 0


def test_what_cannot_be_repaired_keeps_the_exit_code(places, capsys, monkeypatch):
    Path("runs/s/notes.txt").touch()

    def refuse(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", refuse)
    assert main(["doctor", "runs/s", "--repair"]) == 1
    out = capsys.readouterr().out
    assert "Not repaired: [Errno 28] No space left" in out and "1 fault, 0 repaired" in out


def test_a_plan_that_is_missing_is_for_the_next_sweep(places, capsys):
    Path("runs/s/sweep.json").unlink()
    for words in ([], ["--repair"]):
        assert main(["doctor", "runs/s", *words]) == 1
        out = capsys.readouterr().out
        assert out.startswith("missing: sweep.json: no plan, beside runs of a sweep;")
        assert "--repair leaves it." in out
    assert main(WORDS) == 0 and main(["doctor", "runs/s"]) == 0


def test_notes_are_no_faults(places, capsys):
    plan = json.loads(Path("runs/s/sweep.json").read_text())
    plan["cells"].pop()
    Path("runs/s/sweep.json").write_text(json.dumps(plan))
    with lock.hold(places[0], 0):
        Path("runs/s/other").mkdir()
        Path("runs/s/other/sweep.json").touch()
        assert main(["doctor", "runs/s"]) == 0
    out = capsys.readouterr().out
    assert "note: other: a directory of results of its own" in out
    assert out.endswith("all is well; 1 left alone, since a process has them\n")


def test_json(places, capsys):
    Path("runs/s/notes.txt").write_text("mine")
    assert main(["doctor", "runs/s", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["well"], found["directory"]) == (False, "runs/s")
    assert [each["path"] for each in found["findings"]] == ["notes.txt"]
    assert main(["doctor", "runs/s", "--json", "--repair"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["done"].startswith("moved to ")


def test_other_directories_are_wrong_usage(tmp_path, capsys):
    assert main(["doctor", str(tmp_path), "--repair"]) == 1
    assert "holds no sweep and no run" in capsys.readouterr().err
    assert main(["doctor", str(tmp_path / "x")]) == 1
    assert "is no directory of results" in capsys.readouterr().err


def test_without_a_directory_the_newest_sweep_is_looked_at(places, capsys, monkeypatch):
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == "runs/s: all is well\n"
    monkeypatch.chdir("runs/s")
    assert main(["doctor", "--repair"]) == 1
    assert "no sweep below it" in capsys.readouterr().err
