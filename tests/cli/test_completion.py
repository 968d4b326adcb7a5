"""Completion, with the subcommand's word in the line."""

from __future__ import annotations

import pytest

from encoderkit.cli import main
from encoderkit.cli.commands import COMMANDS


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("encoderkit tr", {"train"}),
        ("encoderkit ", set(COMMANDS)),
        ("encoderkit s", {"sweep", "status", "show"}),
        ("encoderkit d", {"doctor"}),
        ("encoderkit train norm=rm", {"norm=rmsnorm"}),
        ("encoderkit sweep ffn=ge", {"ffn=gelu", "ffn=geglu"}),
        ("encoderkit show norm=rmsnorm norm.e", {"norm.eps="}),
        ("encoderkit parts no", set()),
        ("encoderkit  tr", {"train"}),
        ("encoderkit xx norm=", set()),
        ("encoderkit train --config-dir DIR ffn=wi", {"ffn=wide"}),
        ("encoderkit train --config-dir=DIR ffn=wi", {"ffn=wide"}),
        ("encoderkit train --config-dir gone ffn=wi", set()),
        ('encoderkit train "norm=rm', set()),
        ("encoderkit train norm=${", set()),
        ("encoderkit train norm.p", set()),
        ("encoderkit explain norm=layernorm --diff norm=rm", {"norm=rmsnorm"}),
        ("encoderkit explain norm=layernorm --diff norm=rmsnorm norm.of", {"norm.offset="}),
    ],
)
def test_candidates(line, wanted, capsys, monkeypatch, tmp_path):
    (tmp_path / "DIR" / "ffn").mkdir(parents=True)
    (tmp_path / "DIR" / "ffn" / "wide.yaml").write_text("defaults: [mlp]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    assert main(["-sc", "query=bash"]) == 0
    printed = capsys.readouterr()
    assert set(printed.out.split()) == wanted
    assert printed.err == ""


@pytest.mark.parametrize(("point", "wanted"), [("18", "norm="), ("abc", "norm=rmsnorm")])
def test_the_cursor_may_stand_anywhere(point, wanted, capsys, monkeypatch):
    monkeypatch.setenv("COMP_LINE", "encoderkit train norm=rm")
    monkeypatch.setenv("COMP_POINT", point)
    assert main(["-sc", "query=bash"]) == 0
    assert wanted in capsys.readouterr().out.split()


def test_another_question_is_refused(capsys):
    assert main(["-sc", "nonsense"]) == 2
    assert "nonsense: must be install=bash" in capsys.readouterr().err


def test_the_script_can_be_installed(capsys):
    assert main(["--shell-completion", "install=bash"]) == 0
    assert "COMP_LINE" in capsys.readouterr().out
