"""A bad value of a stranger's option: the same words through train, sweep and build."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import encoderkit
from encoderkit import plugins
from encoderkit.cli import main
from encoderkit.errors import ConfigError
from encoderkit.registry import Entry, Owner

PACKAGE = Path(__file__).parents[2] / "plugins" / "encoderkit-dyt"
DYT = Owner("encoderkit-dyt", "0.1.0")


@pytest.fixture(autouse=True)
def dyt(monkeypatch):
    """Put the stranger's package on the path and its part into the registry."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(PACKAGE)])
    found = plugins.load([EntryPoint("dyt", "encoderkit_dyt", plugins.GROUP)])
    part = found.entries[("norm", "dyt")].part
    monkeypatch.setitem(plugins.registry().entries, ("norm", "dyt"), Entry(part, DYT))


FAULTS = {
    "norm.alpha=abc": "norm.alpha=abc: must be a finite number (dyt, encoderkit-dyt 0.1.0). "
    "Try norm.alpha=0.5.",
    "norm.alpha=nan": "norm.alpha=nan: must be a finite number (dyt, encoderkit-dyt 0.1.0). "
    "Try norm.alpha=0.5.",
    "norm.alpha=-1": "norm.alpha=-1: must be above 0 (dyt, encoderkit-dyt 0.1.0). "
    "Try norm.alpha=0.5.",
    "norm.alpha=null": "norm.alpha=null: must be a finite number (dyt, encoderkit-dyt 0.1.0). "
    "Try norm.alpha=0.5.",
    "norm.alpa=1": "norm.alpa=1: there is no such option (dyt, encoderkit-dyt 0.1.0). "
    "Did you mean norm.alpha?",
    "+norm.alpha=1": "+norm.alpha=1: '+' would add a key, and only keys that a part declares have "
    "an effect. Type norm.alpha=1.",
}


@pytest.mark.parametrize("override", FAULTS)
def test_build(override):
    with pytest.raises(ConfigError) as caught:
        encoderkit.build("norm=dyt", override)
    assert str(caught.value) == FAULTS[override]


@pytest.mark.parametrize("override", FAULTS)
@pytest.mark.parametrize("command", ["train", "train -m", "sweep", "explain", "show"])
def test_commands(override, command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), "norm=dyt", override]) == 2
    assert capsys.readouterr().err == f"ConfigError: {FAULTS[override]}\n"
    assert list(tmp_path.iterdir()) == []


def test_the_strangers_part_builds_and_shows():
    stack = encoderkit.build("norm=dyt", "norm.alpha=0.7")
    assert float(stack.state_dict()["final.alpha"]) == pytest.approx(0.7)


def test_the_strangers_part_is_listed(capsys):
    assert main(["parts", "norm"]) == 0
    out = capsys.readouterr().out
    assert "dyt" in out
    assert "encoderkit-dyt 0.1.0" in out
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "dyt [encoderkit-dyt 0.1.0]" in capsys.readouterr().out


def test_the_strangers_part_is_completed(capsys, monkeypatch):
    for line, wanted in (
        ("encoderkit train norm=", "norm=dyt"),
        ("encoderkit sweep norm=dyt norm.", "norm.alpha="),
    ):
        monkeypatch.setenv("COMP_LINE", line)
        monkeypatch.setenv("COMP_POINT", str(len(line)))
        assert main(["--shell-completion", "query=bash"]) == 0
        assert wanted in capsys.readouterr().out.split()
