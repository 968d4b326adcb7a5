"""`encoderkit parts check`."""

from __future__ import annotations

import json

from encoderkit.cli import main


def test_one_line_a_property(capsys):
    assert main(["parts", "check", "init=torch"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("holds")]
    assert last.endswith("not asked")


def test_json(capsys):
    assert main(["parts", "check", "init=torch", "--json"]) == 0
    results = {result["name"]: result for result in json.loads(capsys.readouterr().out)}
    assert results["fills"]["status"] == "holds"


def test_a_broken_part_is_an_exit_status(capsys, monkeypatch):
    from encoderkit_builtin.inits import Torch

    monkeypatch.setattr(Torch, "bias", lambda self, t, fan_in, generator: None)
    for more in ([], ["--json"]):
        assert main(["parts", "check", "init=torch", *more]) == 1
    assert "broken     fills" in (out := capsys.readouterr().out)
    assert "smallest input: lengths=" in out


def test_overrides_belong_to_a_check(capsys):
    assert main(["parts", "norm", "norm.eps=1"]) == 2
    assert "belongs to a check" in capsys.readouterr().err


def test_a_check_names_a_part(capsys):
    assert main(["parts", "check"]) == 2
    assert "names no part" in capsys.readouterr().err
