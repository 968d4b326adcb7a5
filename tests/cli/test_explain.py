"""`encoderkit explain`."""

from __future__ import annotations

import json

from encoderkit.cli import main


def test_the_ffn_holds_two_thirds(capsys):
    assert main(["explain", "model=base", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    share = {row["part"]: row["share"] for row in found["rows"]}
    assert abs(share["mlp"] - 2 / 3) < 1e-3
    assert sum(row["parameters"] for row in found["rows"]) == found["parameters"]


def test_table_and_equation(capsys):
    assert main(["explain", "placement=post"]) == 0
    out = capsys.readouterr().out
    assert "x = N(x + ffn(x))" in out
    assert "100.00%" in out
