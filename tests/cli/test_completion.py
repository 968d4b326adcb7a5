"""Completion, with the subcommand's word in the line."""

from __future__ import annotations

import pytest

from encoderkit.cli import main


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("encoderkit tr", {"train"}),
        ("encoderkit ", {"train", "sweep", "compare", "parts", "explain", "show"}),
        ("encoderkit train norm=rm", {"norm=rmsnorm"}),
        ("encoderkit sweep ffn=ge", {"ffn=gelu", "ffn=geglu"}),
        ("encoderkit show norm=rmsnorm norm.e", {"norm.eps="}),
        ("encoderkit parts no", set()),
    ],
)
def test_candidates(line, wanted, capsys, monkeypatch):
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    assert main(["-sc", "query=bash"]) == 0
    assert set(capsys.readouterr().out.split()) == wanted


def test_the_script_can_be_installed(capsys):
    assert main(["--shell-completion", "install=bash"]) == 0
    assert "COMP_LINE" in capsys.readouterr().out
