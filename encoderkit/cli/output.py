"""Tables for people: nothing in them is ever cut, and what is piped is not folded either."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

_ENDLESS = 1_000_000
_TAIL = re.compile(r"(?: |\x1b\[[0-9;]*m)+$", re.MULTILINE)


@contextmanager
def unheard() -> Iterator[None]:
    """Let the work go on when what it prints cannot be written: a closed pipe, a full disk."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err = _Patient(before[0]), _Patient(before[1])
    try:
        yield
    finally:
        out.flush()
        if out.lost and out.lost.errno != errno.EPIPE:  # a reader who leaves wants no more
            err.write(f"what is printed cannot be written, and is lost: {out.lost.strerror}\n")
        err.flush()
        sys.stdout, sys.stderr = before


class _Patient:
    """A stream that loses what cannot be written, instead of failing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        """Write it where that is possible, and return its length."""
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Write what is pending where that is possible."""
        self._try(self._stream.flush)

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            self.lost = self.lost or error
            with suppress(OSError):  # what is pending would fail once more at the end
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        """Return what else the stream has."""
        return getattr(self._stream, name)


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
