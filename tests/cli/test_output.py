from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from encoderkit.cli.output import console, show_table, table

HEADERS = ["variant", "n", "loss"]
ROWS = [["norm=layernorm placement=pre", "3", "1.2345"], ["x" * 90, "3", ""]]


@pytest.mark.hazard("own: a name is only a name")
def test_no_text_is_taken_for_markup() -> None:
    out = Console(width=100, file=io.StringIO(), record=True)
    made = table(["[red]loss[/red]", "n"], [["[bold]a[/bold]", "[/]"]], "lr")
    out.print(made)
    text = out.export_text()
    for word in ("[red]loss[/red]", "[bold]a[/bold]", "[/]"):
        assert word in text
    assert made.columns[1].justify == "right" and made.columns[0].justify == "left"


@pytest.mark.parametrize("columns", [None, "0", "", "wide"])
def test_what_is_piped_is_whole(columns, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    row = ["a" * 300, "b " * 200 + "b", "1"]
    assert show_table(HEADERS, [row], droppable=["n"]) == []
    assert capsys.readouterr().out.splitlines()[1].split("  ") == row


def test_columns_go_in_their_order_until_the_rest_fits(capsys, monkeypatch):
    rows = [["norm=layernorm", "3" * 10, "1.2345"]]
    for columns, dropped in ((34, []), (33, ["n"]), (21, ["n", "loss"]), (14, ["n", "loss"])):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert show_table(HEADERS, rows, droppable=["seconds", "n", "loss"]) == dropped
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 2 and lines[1].startswith("norm=layernorm")
        assert all(header not in lines[0].split() for header in dropped)


@pytest.mark.parametrize("columns", [5, 12, 40, 80])
def test_cells_are_folded_and_never_cut(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    show_table(["variant"], [row[:1] for row in ROWS])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    letters = "variant" + "".join(row[0] for row in ROWS)
    assert "".join(lines).replace(" ", "") == letters.replace(" ", "")


@pytest.mark.parametrize("columns", ["80", "10"])
def test_no_line_ends_in_blanks(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    show_table(HEADERS, [[*ROWS[0][:2], ""], *ROWS], "lrl")
    for line in capsys.readouterr().out.splitlines():
        assert line == line.rstrip()


def test_a_terminal_sees_bold_headers_and_no_blanks_behind_them(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert console().width == 80
    show_table(["a", "b"], [["x", "long cell"]])
    out = capsys.readouterr().out
    assert "\x1b[1m" in out
    assert " \x1b[0m\n" not in out and " \n" not in out
