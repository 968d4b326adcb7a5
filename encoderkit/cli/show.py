"""`encoderkit show`: the resolved configuration, each value with its origin."""

from __future__ import annotations

import argparse
import json
import sys

from encoderkit.cli.arguments import parser as overrides_parser
from encoderkit.cli.arguments import report_plugins
from encoderkit.config.check import show
from encoderkit.plugins import registry


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    made = overrides_parser(
        "show",
        "Show the resolved configuration, each value with the place that set it.",
        "  encoderkit show\n  encoderkit show ffn=geglu model.d_model=128\n",
    )
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Print the configuration."""
    from encoderkit.config.compose import Composer

    report_plugins(arguments)
    with Composer(registry(), arguments.config_dir) as composer:
        origins = composer.origins(arguments.overrides)
    if arguments.json:
        print(json.dumps({o.path: {"value": o.value, "origin": o.source} for o in origins}))
        return 0
    from encoderkit.cli.output import show_table

    cells = [
        (origin.path, show(origin.value, most=sys.maxsize), origin.source) for origin in origins
    ]
    show_table(["key", "value", "origin"], cells)
    return 0
