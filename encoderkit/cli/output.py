"""Tables and lines on the terminal, whole when they are piped."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


def console() -> Console:
    """Return a console that never cuts what is piped."""
    return Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", right: str = ""
) -> Table:
    """Return a table; `right` names, by a letter r for each, the columns that hold numbers."""
    made = Table(
        title=Text(title) if title else None, title_justify="left", box=None, pad_edge=False
    )
    for index, header in enumerate(headers):
        made.add_column(
            Text(header), justify="right" if right[index : index + 1] == "r" else "left"
        )
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made
