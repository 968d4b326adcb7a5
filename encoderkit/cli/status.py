"""`encoderkit status`: where a sweep stands, from another terminal."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

from encoderkit.errors import Fault
from encoderkit.sweep import record
from encoderkit.sweep.status import Active, Failure, Status, status


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    made = argparse.ArgumentParser(
        prog="encoderkit status",
        description="Show where a sweep stands: cells done, running, failed and waiting, the "
        "states of each variant, the best run so far, and the failed ones with their logs.",
        epilog="examples:\n  encoderkit status\n  encoderkit status runs/card --watch 2\n"
        "  encoderkit status --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("dir", nargs="?", type=Path, help="results directory; the newest sweep's")
    made.add_argument("--json", action="store_true", help="print JSON; with --watch, a line each")
    made.add_argument(
        "--watch",
        type=_seconds,
        metavar="N",
        help="show it again every N seconds until all cells have ended; when piped, a line each",
    )
    return made


def run(arguments: argparse.Namespace) -> int:
    """Print where the sweep stands, once or until it is over."""
    found = status(arguments.dir)
    if arguments.watch is None:
        _print(found, arguments.json)
        return 0
    where, moving = found.directory, sys.stdout.isatty() and not arguments.json
    while not found.over:
        if moving:
            print("\x1b[H\x1b[J", end="")
            _print(found, False)
        elif arguments.json:
            print(json.dumps(record.strict(found.content())))
        else:
            print(counts(found))
        sys.stdout.flush()
        time.sleep(arguments.watch)
        found = status(where)
    print("\x1b[H\x1b[J" if moving else "", end="")
    if arguments.json:
        print(json.dumps(record.strict(found.content())))
    else:
        _print(found, False)
    return 0


def _seconds(text: str) -> float:
    found = float(text)
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of seconds above 0")
    return found


def _print(found: Status, as_json: bool) -> None:
    if as_json:
        print(record.dump(found.content()).decode(), end="")
        return
    from encoderkit.cli.output import show_table

    print(counts(found))
    for best in found.best:
        print(best)
    rows = [
        (label, " ".join(f"{count} {state}" for state, count in states.items()))
        for label, states in found.variants.items()
    ]
    show_table(["variant", "states"], rows)
    for line in (*map(_active, found.active), *map(_failure, found.failures)):
        print(line)
    for note in found.notes:
        print(f"note: {note}")
    if found.attended and not found.running and found.waiting:
        print("a runner is at work: it starts, or is between two cells")
    elif found.command and not found.running and found.done < found.cells:
        print(f"to go on: {found.command}{' --retry-failed' * (not found.waiting)}")


def counts(found: Status) -> str:
    """Return the numbers in one line."""
    line = f"{found.directory}: {found.done} done, {found.running} running, {found.failed} failed, "
    line += f"{found.waiting} waiting of {found.cells}"
    if found.tokens_per_second is not None:
        line += f"; {found.tokens_per_second:,.0f} tokens/s a run"
    if found.remaining:
        line += f"; about {found.remaining:.0f} s left"
    return line


def _active(each: Active) -> str:
    line = f"running: {each.label} seed={each.seed} step {each.step}/{each.steps}"
    line += "" if each.loss is None else f", val/loss {each.loss:.4f}"
    return f"{line}; so far {each.trouble}" if each.trouble else line


def _failure(each: Failure) -> str:
    why = each.reason.partition("\n")[0]
    where = f"failed: {each.label} seed={each.seed}"
    return str(Fault(where, f"{each.state}{': ' * bool(why)}{why}", f"({each.log})"))
