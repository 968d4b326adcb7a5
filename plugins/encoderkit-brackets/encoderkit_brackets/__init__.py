"""A task of brackets for encoderkit: what there is to choose. The code is in task.py."""

from __future__ import annotations

from dataclasses import dataclass

from encoderkit.api import Options, Part, hookimpl, option

API_VERSION = 1


@dataclass(slots=True, kw_only=True)
class BracketsOptions(Options):
    """The options of `task=brackets`."""

    pairs: int = option(12, "the most pairs of brackets in a sequence", at_least=1)
    sorts: int = option(4, "sorts of openers", at_least=2)
    eval_sequences: int = option(512, "sequences in the evaluation", at_least=1)


@hookimpl
def encoderkit_parts() -> list[Part]:
    """Add `task=brackets`."""
    return [
        Part(
            "task",
            "brackets",
            "encoderkit_brackets.task:Brackets",
            "name the opener that each closing bracket matches: endless, exact, needs order",
            BracketsOptions,
        )
    ]
