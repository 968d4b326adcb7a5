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


def test_shapes_fold_at_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert max(map(len, lines)) <= 80
    assert any("down.bias" in line for line in lines) and "…" not in "".join(lines)
    assert all(line == line.rstrip() for line in lines)


def test_table_and_equation(capsys):
    assert main(["explain", "placement=post"]) == 0
    out = capsys.readouterr().out
    assert "x = N(x + ffn(x))" in out
    assert "100.00%" in out
