"""`encoderkit status`, once and again and again."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from encoderkit.cli import main
from encoderkit.cli import status as command
from encoderkit.sweep.status import Active, Best, Failure, Status

SMALL = ["train=smoke", "train.steps=4", "train.warmup=1", "model.n_layers=1", "sweep.name=s"]
RUNNING = Status(
    directory=Path("runs/s"),
    cells=10,
    done=4,
    running=1,
    failed=1,
    waiting=4,
    variants={"norm=a": {"error": 1, "ok": 4}, "norm=b": {"running": 1, "waiting": 4}},
    tokens_per_second=12345.6,
    remaining=61.4,
    active=[
        Active("norm=b", 0, 20, 60, None, ""),
        Active("norm=b", 1, 40, 60, 2.46789, "it stands still"),
    ],
    best=(Best("sort", "loss", 0.25, "norm=a", 2),),
    failures=[Failure("norm=a", 1, "error", "ValueError: \x1b[31mno\nmore", "runs/s/x/log.txt")],
    notes=["one"],
    command="encoderkit sweep norm=a,b",
    attended=True,
)
STOPPED = dataclasses.replace(
    RUNNING, running=0, waiting=5, remaining=None, active=[], attended=False
)
OVER = dataclasses.replace(STOPPED, waiting=0, done=10, failed=0, failures=[])
LINE = (
    "runs/s: 4 done, 1 running, 1 failed, 4 waiting of 10; 12,346 tokens/s a run; about 61 s left"
)


@pytest.fixture
def shown(monkeypatch):
    """Let the sweep stand like this, one after the other."""

    def show(*standings):
        left = iter(standings)
        asked = []
        monkeypatch.setattr(command, "status", lambda where: asked.append(where) or next(left))
        monkeypatch.setattr(command.time, "sleep", asked.append)
        monkeypatch.delenv("COLUMNS", raising=False)
        return asked

    return show


def test_everything_is_said_at_once(shown, capsys):
    shown(RUNNING)
    assert main(["status", "runs/s"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        LINE,
        "best sort loss 0.2500: norm=a seed=2",
        "variant  states",
        "norm=a   1 error 4 ok",
        "norm=b   1 running 4 waiting",
        "running: norm=b seed=0 step 20/60",
        "running: norm=b seed=1 step 40/60, val/loss 2.4679; so far it stands still",
        r"failed: norm=a seed=1: error: ValueError: \x1b[31mno (runs/s/x/log.txt)",
        "note: one",
    ]


def test_a_runner_between_two_cells_is_no_reason_to_start_another(shown, capsys):
    shown(dataclasses.replace(STOPPED, attended=True))
    assert main(["status", "runs/s"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("note: one\na runner is at work: it starts, or is between two cells\n")
    assert "to go on" not in out


def test_a_sweep_that_stopped_says_how_to_go_on(shown, capsys):
    shown(STOPPED)
    assert main(["status"]) == 0
    assert capsys.readouterr().out.endswith("to go on: encoderkit sweep norm=a,b\n")
    shown(dataclasses.replace(STOPPED, done=9, waiting=0))
    assert main(["status"]) == 0
    assert capsys.readouterr().out.endswith("sweep norm=a,b --retry-failed\n")
    shown(OVER)
    assert main(["status"]) == 0
    assert "to go on" not in capsys.readouterr().out


def test_a_pipe_gets_a_line_each_until_it_is_over(shown, capsys):
    asked = shown(RUNNING, STOPPED, OVER)
    assert main(["status", "--watch", "2.5"]) == 0
    assert asked == [None, 2.5, Path("runs/s"), 2.5, Path("runs/s")]  # the newest may change
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == LINE and lines[1].startswith("runs/s: 4 done, 0 running")
    assert lines[2].startswith("runs/s: 10 done") and lines[3].startswith("best sort")
    assert "\x1b" not in "".join(lines)


def test_a_terminal_is_drawn_again(shown, capsys, monkeypatch):
    shown(RUNNING, OVER)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["status", "--watch", "1"]) == 0
    first, second = capsys.readouterr().out.split("\x1b[H\x1b[J")[1:]
    assert first.startswith(LINE) and "running: norm=b" in first
    assert second.startswith("runs/s: 10 done")


def test_json_is_a_line_each(shown, capsys):
    shown(RUNNING, OVER)
    assert main(["status", "--watch", "1", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["running"], second["running"], first["schema"]) == (1, 0, 1)
    shown(RUNNING)
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "x"])
def test_a_watch_takes_seconds(text, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["status", "--watch", text])
    assert ended.value.code == 2 and "--watch" in capsys.readouterr().err


def test_for_real(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "norm=layernorm,none", *SMALL, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["directory"], found["done"], found["cells"]) == ("runs/s", 2, 2)
    assert found["command"].startswith("encoderkit sweep norm=layernorm,none")
    assert main(["status", "nowhere"]) == 1
    assert "StoreError: nowhere: not a results directory" in capsys.readouterr().err
