"""`encoderkit explain`: a configuration's equations, and where its parameters and FLOPs are."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from encoderkit.cli.arguments import parser as overrides_parser
from encoderkit.cli.arguments import report_plugins
from encoderkit.config.check import show
from encoderkit.config.request import configure

if TYPE_CHECKING:
    from encoderkit.nn.difference import Difference
    from encoderkit.nn.explain import Explanation, Row

_OWN = ("overrides", "diff")  # what each of two configurations has for itself
EXAMPLES = """\
  encoderkit explain
  encoderkit explain model=base placement=post ffn=swiglu --length 512
  encoderkit explain norm=layernorm --diff norm=rmsnorm
"""


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    made = overrides_parser(
        "explain",
        "Show what a configuration computes, and where its parameters and FLOPs are.",
        EXAMPLES,
    )
    made.add_argument(
        "--length",
        type=_tokens,
        default=128,
        metavar="T",
        help="tokens of the sequence whose FLOPs are counted (128): matrix products of a forward "
        "pass, two FLOPs for a multiplication and its addition",
    )
    made.add_argument(
        "--diff",
        nargs=argparse.REMAINDER,
        help="what follows is a second configuration: show where it differs from the first",
    )
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def _tokens(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a number of tokens, at least 1")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Print the equations and the table, or the difference of two configurations."""
    report_plugins(arguments)
    if arguments.diff is not None:
        return _compare(arguments.overrides, _second(arguments))
    config = configure(*arguments.overrides, config_dirs=arguments.config_dir)
    from encoderkit.nn.explain import explain  # imports torch, so only once the request is right

    found = explain(config, arguments.length)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        _print(found)
    return 0


def _second(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return what stands after --diff, parsed; options there count as those before it do."""
    held = {name: value for name, value in vars(arguments).items() if name not in _OWN}
    second = parser().parse_intermixed_args(arguments.diff, argparse.Namespace(**held))
    if second.diff is not None:
        parser().error("--diff: there are two configurations, so give it once")
    return second


def _compare(first: Sequence[str], second: argparse.Namespace) -> int:
    requests = first, second.overrides
    a, b = (configure(*words, config_dirs=second.config_dir) for words in requests)
    from encoderkit.nn.difference import difference

    found = difference(a, b, second.length)
    if second.json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
    elif found.values:
        _print_difference(found, *requests)
    else:
        print("The two configurations are the same.")
    return 0


def _print(found: Explanation) -> None:
    from encoderkit.cli.output import show_table

    cells = [
        [
            row.slot,
            row.part,
            _short(row.shape),
            f"{row.parameters:,}",
            f"{row.share:.2%}",
            *_cost(row),
        ]
        for row in found.rows
    ]
    whole = "100.00%" if found.flops is not None else ""
    cells.append(["all", "", "", f"{found.parameters:,}", "100.00%", _flops(found.flops), whole])
    print("\n".join(found.equation) + "\n")
    sizes = ["parameters", "share", _flops_header(found.length), "share"]
    show_table(["slot", "part", "shape in one layer", *sizes], cells, right="lllrrrr")


def _print_difference(found: Difference, a: Sequence[str], b: Sequence[str]) -> None:
    from encoderkit.cli.output import show_table

    print(f"a: {' '.join(a) or 'the defaults'}\nb: {' '.join(b) or 'the defaults'}\n")
    values = [
        [path, *(show(held[side], most=sys.maxsize) if side in held else "" for side in "ab")]
        for path, held in found.values.items()
    ]
    show_table(["value", "a", "b"], values)
    if found.equation:
        print("\n" + "\n".join(found.equation))
    cells = [_sides(pair.a, pair.b) for pair in found.rows]
    counts = [f"{side.parameters:,}" for side in (found.a, found.b)]
    costs = [_flops(side.flops) for side in (found.a, found.b)]
    cells.append(["all", "", "", *counts, *costs])
    cost = _flops_header(found.a.length)
    headers = [f"{name}, {side}" for name in ("part", "parameters", cost) for side in "ab"]
    print()
    show_table(["slot", *headers], cells, right="lllrrrr")


def _sides(a: Row | None, b: Row | None) -> list[str]:
    """Return the cells of two rows of one place, column by column."""
    rows = (a, b)
    return [
        next(row.slot for row in rows if row),
        *(row.part if row else "" for row in rows),
        *(f"{row.parameters:,}" if row else "" for row in rows),
        *(_flops(row.flops) if row else "" for row in rows),
    ]


def _short(shape: str) -> str:
    """Return tensors of one shape by the first and the last name where they are more than four."""
    found = []
    for text in shape.split("; "):
        names, bracket, size = text.partition(" (")
        listed = names.split(", ")
        names = f"{listed[0]} to {listed[-1]}" if len(listed) > 4 else names
        found.append(names + bracket + size)
    return "; ".join(found)


def _cost(row: Row) -> list[str]:
    return [_flops(row.flops), "" if row.flops_share is None else f"{row.flops_share:.2%}"]


def _flops(count: float | None) -> str:
    return "unknown" if count is None else f"{count:,.0f}"


def _flops_header(length: int) -> str:
    return f"FLOPs a token at T={length}"
