"""`encoderkit doctor`: what is wrong in a results directory, and what can be done about it."""

from __future__ import annotations

import argparse
from pathlib import Path

from encoderkit.errors import Fault
from encoderkit.sweep import record, store
from encoderkit.sweep.doctor import Examination, examine, repair
from encoderkit.sweep.symptoms import Cure


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    made = argparse.ArgumentParser(
        prog="encoderkit doctor",
        description="List what is stray, half-written, damaged, foreign, moved or copied in the "
        "directory of a sweep. Exit code 0: all is well, or was repaired; 1: a fault is left.",
        epilog="examples:\n  encoderkit doctor\n  encoderkit doctor runs/card --repair",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("dir", nargs="?", type=Path, help="results directory; the newest sweep's")
    made.add_argument(
        "--repair",
        action="store_true",
        help="finish or undo what was cut short, and move what is damaged or foreign into "
        "DIR/.doctor/, so that the next sweep runs these cells anew; nothing is deleted, and what "
        "a process holds is left alone",
    )
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Print what is found, and return 1 when a fault is left."""
    where = store.newest_sweep() if arguments.dir is None else arguments.dir
    seen = repair(where) if arguments.repair else examine(where)
    if arguments.json:
        print(record.dump(seen.content()).decode(), end="")
    else:
        print("\n".join([*lines(seen), summary(seen, arguments.repair)]))
    return 0 if seen.well else 1


def lines(seen: Examination) -> list[str]:
    """Return a line for each finding: what, where, what it means, what is or was done."""
    listed = []
    for n, each in enumerate(seen.findings):
        where = str(each.path.relative_to(seen.directory))
        done = f"--repair {each.cure.value}."
        if n in seen.done:
            done = f"Repaired: {seen.done[n]}."
        elif n in seen.failed:
            done = f"Not repaired: {seen.failed[n]}."
        line = Fault(where, f"{each.what}; {each.means}.", done)
        listed.append(f"{'note' if each.note else each.kind}: {line}")
    return listed


def summary(seen: Examination, repaired: bool) -> str:
    """Return the last line: how many faults there are, and how many were repaired."""
    faults = sum(not each.note for each in seen.findings)
    held = f"; {len(seen.held)} left alone, since a process has them" if seen.held else ""
    if not faults:
        return f"{seen.directory}: all is well{held}"
    said = f"{seen.directory}: {faults} fault{'s' * (faults > 1)}"
    if repaired:
        return f"{said}, {len(seen.done)} repaired{held}"
    able = sum(each.cure is not Cure.NONE for each in seen.findings)
    return f"{said}, {able} that --repair can put right{held}"
