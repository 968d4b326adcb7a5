"""`encoderkit show`."""

from __future__ import annotations

import json

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
