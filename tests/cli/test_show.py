"""`encoderkit show`."""

from __future__ import annotations

import json

import pytest

from encoderkit.cli import main


def test_every_value_has_its_origin(capsys):
    assert main(["show", "norm=rmsnorm", "train.lr=1e-3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["train.lr"] == {"value": 1e-3, "origin": "command line"}
    assert found["norm.part"] == {"value": "rmsnorm", "origin": "command line"}
    assert all(leaf["origin"] for leaf in found.values())


def test_table(capsys):
    assert main(["show"]) == 0
    assert "norm.eps" in capsys.readouterr().out


@pytest.mark.parametrize("columns", ["80", ""])
def test_long_values_are_whole(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    directory = "d" * 150
    assert main(["show", f"sweep.dir={directory}"]) == 0
    out = capsys.readouterr().out
    assert directory in "".join(word for word in out.split() if set(word) == {"d"})
    assert "…" not in out and "..." not in out
    assert not columns or max(map(len, out.splitlines())) <= 80
