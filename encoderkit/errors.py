"""Every error that encoderkit raises on purpose.

EncoderkitError
├── ConfigError       a request that cannot be served: all its faults at once
├── PluginError       a plugin, or a part of one, that breaks its contract
├── InputError        tensors or files that a call cannot take
├── CheckpointError   a checkpoint that is missing, damaged or of another run
└── StoreError        a results directory that cannot be read or written

The command line prints the message alone; `--debug` adds the traceback.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class EncoderkitError(Exception):
    """The base of all errors below."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request: where it stands, what is wrong, what to type instead."""

    where: str
    problem: str
    hint: str = ""

    @property
    def group(self) -> str:
        """The first word of the place: `norm` in `norm.eps=-1`."""
        return self.where.partition("=")[0].partition(".")[0]

    def moved(self, kind: str, place: str) -> Fault:
        """Return the fault of a part that was chosen elsewhere, as by a rule of model.layers."""
        own = re.compile(rf"(?<![\w.\]]){kind}(?=[.=])")
        return Fault(*(own.sub(place, text) for text in (self.where, self.problem, self.hint)))

    def __str__(self) -> str:
        where = self.where if len(self.where) <= 200 else f"{self.where[:197]}..."
        said = f"{self.problem} {self.hint}".rstrip().split("\n")
        return f"{_printable(where)}: " + "\n".join(map(_printable, said))


def _printable(text: str) -> str:
    """Return a text with control characters, which could move or colour the terminal, escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class ConfigError(EncoderkitError):
    """All faults of one request, and below them a line of advice on the request as a whole."""

    def __init__(self, faults: Sequence[Fault], advice: str = "") -> None:
        self.faults = tuple(faults)
        self.advice = advice
        lines = [str(fault) for fault in self.faults]
        head = f"{len(lines)} faults in this request:\n  " if len(lines) > 1 else ""
        tail = f"\n{_printable(advice)}" if advice else ""
        super().__init__(head + "\n  ".join(lines) + tail)

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Fault, ...], str]]:
        return type(self), (self.faults, self.advice)


class PluginError(EncoderkitError):
    """A plugin, or a part of one, that breaks its contract."""


class InputError(EncoderkitError):
    """Tensors or files that a call cannot take."""


class CheckpointError(EncoderkitError):
    """A checkpoint that is missing, damaged or of another run."""


class StoreError(EncoderkitError):
    """A results directory that cannot be read or written."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return 'Did you mean x?' for the closest known word, or nothing when none is close."""
    lower = {text.lower(): text for text in known}
    close = difflib.get_close_matches(word[:100].lower(), lower, n=1, cutoff=0.6)
    return f"Did you mean {lower[close[0]]}?" if close else ""
