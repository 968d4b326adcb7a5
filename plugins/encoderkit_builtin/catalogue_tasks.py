"""The built-in tasks: names, options, summaries. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from encoderkit.api import Options, Part, option


@dataclass(slots=True, kw_only=True)
class SortOptions(Options):
    """How long the sequences are, and of how many symbols."""

    length: int = option(24, "symbols in a sequence", at_least=1)
    symbols: int = option(12, "distinct symbols", at_least=2)
    eval_sequences: int = option(512, "sequences in the evaluation", at_least=1)


@dataclass(slots=True, kw_only=True)
class MLMPydocOptions(Options):
    """How long the windows are, and how much of them is hidden."""

    length: int = option(128, "bytes in a window", at_least=2, at_most=4096)
    rate: float = option(0.15, "share of the bytes that is hidden", above=0, at_most=1)


TASKS: list[Part] = [
    Part(
        kind="task",
        name="sort",
        target="encoderkit_builtin.tasks:Sort",
        summary="sort symbols: endless, exact, and quick to learn",
        options=SortOptions,
    ),
    Part(
        kind="task",
        name="mlm_pydoc",
        target="encoderkit_builtin.tasks:MLMPydoc",
        summary="masked bytes of the English text that comes with every CPython",
        options=MLMPydocOptions,
    ),
]
