"""`encoderkit compare`: the variants of a sweep, each against the baseline."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from encoderkit.report.table import Comparison, Row, compare, to_csv, to_json

_DROPPABLE = ("tokens/s", "parameters", "sd", "states")  # the first goes first


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    made = argparse.ArgumentParser(
        prog="encoderkit compare",
        description="Compare the variants of a sweep: mean and sd over seeds, and the difference "
        "to the baseline, paired by seed, with its 95 % t interval.",
        epilog="examples:\n  encoderkit compare\n  encoderkit compare runs/card --csv\n"
        '  encoderkit compare --baseline "norm=layernorm placement=pre ffn=gelu"',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("dir", nargs="?", type=Path, help="results directory; the newest sweep's")
    made.add_argument("--baseline", metavar="LABEL", help="the variant to compare with")
    form = made.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--csv", action="store_true", help="print CSV")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison."""
    found = compare(arguments.dir, baseline=arguments.baseline)
    if arguments.json:
        print(to_json(found), end="")
    elif arguments.csv:
        print(to_csv(found), end="")
    else:
        print_table(found)
    return 0


def print_table(found: Comparison) -> None:
    """Print a comparison for people."""
    from encoderkit.cli.output import show_table

    metric = found.rows[0].metric if found.rows else ""
    headers = ["variant", "n", "states", metric, "sd", "minus baseline", "95 % interval"]
    headers += ["parameters", "tokens/s"]
    print("\n".join([f"{found.directory}, baseline: {found.baseline}", *found.about.lines()]))
    cells = [_cells(row) for row in found.rows]
    dropped = show_table(headers, cells, right="lrlrrrlrr", droppable=_DROPPABLE)
    for note in found.notes:
        print(f"note: {note}")
    if dropped:
        print(f"note: no room for {', '.join(dropped)}; --csv has everything")


def again(directory: Path) -> None:
    """Print the line that shows a comparison again."""
    print(f"again: encoderkit compare {shlex.quote(str(directory))}")


def _cells(row: Row) -> list[str]:
    gap = row.difference
    interval = "" if gap is None or gap.low is None else f"[{gap.low:+.4f}, {gap.high:+.4f}]"
    return [
        row.label,
        str(row.n),
        " ".join(f"{count} {state}" for state, count in row.states.items()),
        _number(row.mean, ".4f"),
        _number(row.sd, ".4f"),
        row.mark or ("" if gap is None else f"{gap.mean:+.4f}"),
        interval,
        _number(row.parameters, ",.0f"),
        _number(row.tokens_per_second, ",.0f"),
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
