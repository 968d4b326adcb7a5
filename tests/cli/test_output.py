from __future__ import annotations

import io

from rich.console import Console

from encoderkit.cli.output import table


def test_no_text_is_taken_for_markup() -> None:
    out = Console(width=100, file=io.StringIO(), record=True)
    made = table(["[red]loss[/red]", "n"], [["[bold]a[/bold]", "[/]"]], "runs/[red]x[/red]", "lr")
    out.print(made)
    text = out.export_text()
    for word in ("[red]loss[/red]", "[bold]a[/bold]", "[/]", "runs/[red]x[/red]"):
        assert word in text
    assert made.columns[1].justify == "right" and made.columns[0].justify == "left"
