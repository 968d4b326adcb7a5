"""The slot ledger of a record: which part filled each place of a stack, and whether it ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from encoderkit.config.identity import version
from encoderkit.registry import Registry

MODES = {"train": "training", "eval": "evaluation"}


def filled(labels: Mapping[str, str], registry: Registry) -> list[dict[str, Any]]:
    """Return a line for each place, from the stack's "kind=name" by path; nothing has run yet."""
    known = {label: version(registry.entries[_key(label)]) for label in set(labels.values())}
    return [
        {"path": path, "kind": _key(label)[0], **known[label], "ran_train": None, "ran_eval": None}
        for path, label in labels.items()
    ]


def _key(label: str) -> tuple[str, str]:
    kind, _, name = label.partition("=")
    return kind, name


def counted(
    lines: Sequence[dict[str, Any]], ran: Mapping[str, Sequence[str]]
) -> tuple[dict[str, list[int]], list[str]]:
    """Set what ran in the lines; return n of n by mode, and in words what never ran.

    A mode that a run did not come to stays null, and counts as 0 of n.
    """
    for mode in MODES:
        for line in lines if ran.get(mode) else ():
            line[f"ran_{mode}"] = line["path"] in ran[mode]
    counts = {mode: [sum(bool(e[f"ran_{mode}"]) for e in lines), len(lines)] for mode in MODES}
    return counts, idle(lines)


def idle(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return in words which parts never ran."""
    found: dict[str, list[str]] = {}
    for mode, words in MODES.items():
        for line in lines:
            if line.get(f"ran_{mode}") is False:
                what = f"{line.get('kind')}={line.get('part')} never ran in {words}"
                found.setdefault(what, []).append(str(line.get("path")))
    return [
        f"{what}: {paths[0]}" + (f" and {len(paths) - 1} more" if paths[1:] else "")
        for what, paths in found.items()
    ]
