"""Tables for people: nothing in them is ever cut, and what is piped is not folded either."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

_ENDLESS = 1_000_000
_TAIL = re.compile(r"(?: |\x1b\[[0-9;]*m)+$", re.MULTILINE)


def console() -> Console:
    """Return a console as wide as the terminal or COLUMNS; a pipe without either has no end."""
    asked = os.environ.get("COLUMNS", "")
    bounded = sys.stdout.isatty() or (asked.isdecimal() and int(asked) > 0)
    width = shutil.get_terminal_size().columns if bounded else _ENDLESS
    return Console(width=width, highlight=False)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> Table:
    """Return a table whose cells fold when room is short.

    `right` names, by a letter r for each, the columns that hold numbers.
    """
    made = Table(box=None, pad_edge=False)
    for index, header in enumerate(headers):
        side = "right" if right[index : index + 1] == "r" else "left"
        made.add_column(Text(header), justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made


def show_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: str = "",
    droppable: Sequence[str] = (),
) -> list[str]:
    """Print a table without trailing blanks, and return the columns that there was no room for.

    The `droppable` columns are left out, in their order, until the rest fits; if it never does,
    cells are folded.
    """
    out = console()
    dropped: list[str] = []
    while True:
        kept = [index for index, header in enumerate(headers) if header not in dropped]
        sides = "".join(right[index : index + 1] or "l" for index in kept)
        cells = [[row[index] for index in kept] for row in rows]
        made = table([headers[index] for index in kept], cells, sides)
        left = [header for header in droppable if header in headers and header not in dropped]
        whole = out.measure(made, options=out.options.update(max_width=_ENDLESS)).maximum
        if whole <= out.width or not left:
            break
        dropped.append(left[0])
    with out.capture() as printed:
        out.print(made)
    text = _TAIL.sub(lambda match: match.group().replace(" ", ""), printed.get())
    print(text, end="")
    return dropped
