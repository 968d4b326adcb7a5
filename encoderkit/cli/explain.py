"""`encoderkit explain`: a configuration's equations, and where its parameters are."""

from __future__ import annotations

import argparse
import dataclasses
import json

from encoderkit.cli.arguments import parser as overrides_parser
from encoderkit.cli.arguments import report_plugins
from encoderkit.config.request import configure


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    made = overrides_parser(
        "explain",
        "Show what a configuration computes, and where its parameters are.",
        "  encoderkit explain\n  encoderkit explain model=base placement=post ffn=swiglu\n",
    )
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Print the equations and the table."""
    report_plugins(arguments)
    config = configure(*arguments.overrides, config_dirs=arguments.config_dir)
    from encoderkit.nn.explain import explain  # imports torch, so only once the request is right

    found = explain(config)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(found), indent=2))
        return 0
    from encoderkit.cli.output import show_table

    cells = [(r.slot, r.part, r.shape, f"{r.parameters:,}", f"{r.share:.2%}") for r in found.rows]
    cells.append(("all", "", "", f"{found.parameters:,}", "100.00%"))
    print("\n".join(found.equation) + "\n")
    headers = ["slot", "part", "shape in one layer", "parameters", "share"]
    show_table(headers, cells, right="lllrr")
    return 0
