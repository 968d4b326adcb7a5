"""`encoderkit compare`, printed for people."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from encoderkit.cli.compare import again, print_table
from encoderkit.report.about import About
from encoderkit.report.stats import Difference
from encoderkit.report.table import Comparison, Row

GAP = Difference(3, -0.0123, -0.0223, -0.0023)
ROW = Row(
    label="norm=layernorm placement=post ffn=gelu",
    n=3,
    states={"ok": 2, "stalled": 1},
    metric="loss",
    mean=1.2345,
    sd=0.0123,
    difference=GAP,
    parameters=149312,
    tokens_per_second=12345.0,
    capped=0,
    mark="",
)
ABOUT = About(
    "sort", 200, 16, [0, 1, 2], ["ffn=glu"], {}, "loss", True, 2.4849, {"uniform": 2.4849}
)
FOUND = Comparison(Path("runs/s"), "norm=a", ABOUT, [ROW], ["one; two"])


def printed(capsys, found=FOUND):
    print_table(found)
    return capsys.readouterr().out.splitlines()


def test_what_was_trained_stands_above_the_table(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = printed(capsys)
    assert lines[:3] == ["runs/s, baseline: norm=a", *ABOUT.lines()]
    assert lines[3].split()[0] == "variant" and lines[3].endswith("tokens/s")
    assert lines[4].startswith(ROW.label) and "[-0.0223, -0.0023]" in lines[4]
    assert lines[5:] == ["note: one; two"]


@pytest.mark.parametrize(
    ("label", "dropped"),
    [
        ("norm=layernorm", "tokens/s, parameters"),
        ("norm=layernorm placem", "tokens/s, parameters, sd"),
        (ROW.label[:26], "tokens/s, parameters, sd, states"),
        ("x" * 100, "tokens/s, parameters, sd, states"),
    ],
)
def test_at_80_columns_columns_go_before_the_variant_is_folded(label, dropped, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    found = dataclasses.replace(FOUND, rows=[dataclasses.replace(ROW, label=label, states={})])
    lines = printed(capsys, found)
    assert lines[-1] == f"note: no room for {dropped}; --csv has everything"
    body = [line for line in lines[3:] if not line.startswith("note: ")]
    assert all(len(line) <= 80 and line == line.rstrip() for line in body)
    assert "".join(line.split("  ")[0] for line in body[1:] if line[0] != " ").startswith(label)
    assert "…" not in "".join(body)


def test_the_way_back_can_be_pasted(capsys):
    again(Path("runs/my sweep"))
    assert capsys.readouterr().out == "again: encoderkit compare 'runs/my sweep'\n"
