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

PACKAGE = Path(__file__).parents[2] / "plugins" / "encoderkit-prmsnorm"
STRANGER = Owner("encoderkit-prmsnorm", "0.1.0")


@pytest.fixture(autouse=True)
def stranger(monkeypatch):
    """Put the stranger's package on the path and its part into the registry."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(PACKAGE)])
    found = plugins.load([EntryPoint("prmsnorm", "encoderkit_prmsnorm", plugins.GROUP)])
    part = found.entries[("norm", "prmsnorm")].part
    monkeypatch.setitem(plugins.registry().entries, ("norm", "prmsnorm"), Entry(part, STRANGER))


OWNED = "(prmsnorm, encoderkit-prmsnorm 0.1.0)"
NO_NUMBER = f"must be a finite number {OWNED}. Try norm.share=0.0625."
FAULTS = {
    "norm.share=abc": f"norm.share=abc: {NO_NUMBER}",
    "norm.share=nan": f"norm.share=nan: {NO_NUMBER}",
    "norm.share=null": f"norm.share=null: {NO_NUMBER}",
    "norm.share=-1": f"norm.share=-1: must be above 0 {OWNED}. Try norm.share=0.0625.",
    "norm.share=2": f"norm.share=2: must be at most 1 {OWNED}. Try norm.share=0.0625.",
    "norm.shar=1": f"norm.shar=1: there is no such option {OWNED}. Did you mean norm.share?",
    "+norm.share=1": "+norm.share=1: '+' would add a key, and only keys that a part declares have "
    "an effect. Type norm.share=1.",
}


@pytest.mark.parametrize("override", FAULTS)
def test_build(override):
    with pytest.raises(ConfigError) as caught:
        encoderkit.build("norm=prmsnorm", override)
    assert str(caught.value) == FAULTS[override]


@pytest.mark.parametrize("override", FAULTS)
@pytest.mark.parametrize("command", ["train", "train -m", "sweep", "explain", "show"])
def test_commands(override, command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), "norm=prmsnorm", override]) == 2
    assert capsys.readouterr().err == f"ConfigError: {FAULTS[override]}\n"
    assert list(tmp_path.iterdir()) == []


def test_the_strangers_part_builds_and_shows():
    stack = encoderkit.build("norm=prmsnorm", "norm.share=0.25")
    assert stack.final.channels == 16


def test_the_strangers_part_is_listed(capsys):
    assert main(["parts", "norm"]) == 0
    out = capsys.readouterr().out
    assert "prmsnorm" in out
    assert "encoderkit-prmsnorm 0.1.0" in out
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "prmsnorm [encoderkit-prmsnorm 0.1.0]" in capsys.readouterr().out


def test_the_strangers_part_is_completed(capsys, monkeypatch):
    for line, wanted in (
        ("encoderkit train norm=", "norm=prmsnorm"),
        ("encoderkit sweep norm=prmsnorm norm.", "norm.share="),
    ):
        monkeypatch.setenv("COMP_LINE", line)
        monkeypatch.setenv("COMP_POINT", str(len(line)))
        assert main(["--shell-completion", "query=bash"]) == 0
        assert wanted in capsys.readouterr().out.split()
