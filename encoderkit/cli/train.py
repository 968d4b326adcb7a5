"""`encoderkit train`: one run; with -m, a Hydra multirun; with resume=DIR, an earlier run again."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from encoderkit.cli.arguments import parser as overrides_parser
from encoderkit.cli.arguments import report_plugins
from encoderkit.errors import ConfigError, Fault
from encoderkit.sweep import store
from encoderkit.sweep.cell import Cell
from encoderkit.sweep.load import recorded
from encoderkit.sweep.plan import single
from encoderkit.sweep.run import LOG_FILE, finished, run_cell
from encoderkit.sweep.runner import exit_code


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    made = overrides_parser(
        "train",
        "Train one encoder. With -m: every point of the grid, under Hydra's own multirun and "
        "launchers. With resume=DIR: go on with the run in that directory.",
        "  encoderkit train norm=rmsnorm ffn=swiglu train=smoke\n"
        "  encoderkit train resume=runs/train/default-seed0-0123456789ab\n"
        "  encoderkit train -m norm=layernorm,rmsnorm hydra/launcher=joblib\n",
    )
    made.add_argument("-m", "--multirun", action="store_true", help="a Hydra multirun")
    made.add_argument(
        "--retry-failed",
        action="store_true",
        help="with -m: run cells again that failed at an earlier start",
    )
    made.add_argument("--quiet", action="store_true", help="print no progress")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Train, print how it ended, and return the exit code."""
    report_plugins(arguments)
    if arguments.multirun:
        from encoderkit.cli import multirun

        return multirun.run(arguments)
    if arguments.retry_failed:
        fault = Fault("--retry-failed", "belongs to -m; one run that failed runs again unasked.")
        raise ConfigError([fault])
    places = [word for word in arguments.overrides if word.startswith("resume=")]
    if places:
        if len(arguments.overrides) > 1:
            others = " ".join(word for word in arguments.overrides if word != places[0])
            problem = "a resumed run keeps its configuration."
            raise ConfigError([Fault(others, problem, f"Type `encoderkit train {places[0]}`.")])
        root, cell = recorded(Path(places[0].partition("=")[2]))
    else:
        root, cell = single(arguments.overrides, config_dirs=arguments.config_dir)
    return _one(root, cell, arguments.quiet)


def _one(root: Path, cell: Cell, quiet: bool) -> int:
    directory = root / cell.name
    if (before := finished(cell, root)) is not None:
        print(f"already done (ended {_minute(before.ended)})")
        state = before.state
    else:
        state = _train(root, cell, quiet)
    if state == "held":
        print(f"another process runs {directory}", file=sys.stderr)
        return 1
    found = store.read(directory)
    numbers = ", ".join(f"{k} {v:.4f}" for k, v in found.metrics.items() if v is not None)
    seconds = found.seconds.get("total", 0.0)
    why = f" ({found.reason})" if found.reason else ""
    print(f"{state}{why}: {numbers or 'no metrics'}; {found.steps} steps in {seconds:.1f} s")
    print(f"{found.parameters or 0:,} parameters; results in {directory}")
    if state == "interrupted":
        print(f"To go on: encoderkit train {shlex.quote(f'resume={directory}')}", file=sys.stderr)
    if state == "error":
        print(f"What happened: {directory / LOG_FILE}", file=sys.stderr)
    return exit_code([state])


def _train(root: Path, cell: Cell, quiet: bool) -> str:
    from encoderkit.cli.progress import Bar, Lines, Watch  # imports torch

    steps = int(cell.tree["train"]["steps"])
    shown = Watch() if quiet else Bar(steps) if sys.stderr.isatty() else Lines(steps)
    with shown as watch:
        return run_cell(cell, root, watch=watch)


def _minute(stamp: str | None) -> str:
    """Return a UTC stamp to the minute, as people write it."""
    return f"{stamp[:16].replace('T', ' ')} UTC" if stamp else "at an unknown time"
