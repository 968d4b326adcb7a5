"""`encoderkit sweep`: every variant of a grid, one process each."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from encoderkit.cli import dry_run
from encoderkit.cli.arguments import parser as overrides_parser
from encoderkit.cli.arguments import report_plugins
from encoderkit.errors import ConfigError, Fault
from encoderkit.sweep.plan import plan
from encoderkit.sweep.runner import Ended, Observer, View, run_sweep, warm_up

PATIENCE = 10.0  # seconds between two lines about a plan


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    made = overrides_parser(
        "sweep",
        "Train every variant of a grid, each in a process of its own, and compare them. The same "
        "command again runs only what is not done.",
        "  encoderkit sweep norm=layernorm,rmsnorm placement=pre,post seeds=3\n"
        "  encoderkit sweep ffn='glob(*glu)' jobs=2 sweep.name=gates\n"
        "  encoderkit sweep experiment=card --dry-run\n"
        "  encoderkit sweep norm=layernorm,dyt norm.eps=1e-5 sweep.optional=[norm.eps]\n"
        "  encoderkit sweep ffn=gelu,swiglu,geglu match=params\n",
    )
    made.add_argument("--quiet", action="store_true", help="print the comparison alone")
    made.add_argument(
        "--fail-fast", action="store_true", help="stop the others in order when a cell fails"
    )
    made.add_argument(
        "--retry-failed",
        action="store_true",
        help="run cells again that failed at an earlier start",
    )
    made.add_argument(
        "--skip-illegal", action="store_true", help="leave out variants that have faults, by name"
    )
    made.add_argument(
        "--dry-run", action="store_true", help="print the plan, and train and write nothing"
    )
    made.add_argument(
        "--trial", action="store_true", help="with --dry-run: time a few steps of each variant"
    )
    made.add_argument("--json", action="store_true", help="with --dry-run: print JSON")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Run the sweep, print its comparison, and return the exit code of its cells."""
    report_plugins(arguments)
    words = [*arguments.overrides, *(f"--config-dir={path}" for path in arguments.config_dir)]
    words += ["--skip-illegal"] * arguments.skip_illegal
    command = shlex.join(["encoderkit", "sweep", *words])
    if idle := [name for name in ("trial", "json") if vars(arguments)[name]]:
        if not arguments.dry_run:
            fault = Fault(f"--{idle[0]}", "belongs to --dry-run.", f"Type --dry-run --{idle[0]}.")
            raise ConfigError([fault])
    elif not arguments.dry_run:
        warm_up()
    with planning(arguments.quiet) as told:
        asked = plan(
            arguments.overrides,
            config_dirs=arguments.config_dir,
            command=command,
            skip_illegal=arguments.skip_illegal,
            told=told,
        )
    if arguments.dry_run:
        return dry_run.show(asked, arguments.json, arguments.trial)
    if not arguments.quiet:
        print(f"{dry_run.size(asked)} in {asked.directory}", flush=True)
        for text in dry_run.beforehand(asked):
            print(f"note: {text}")
    live = sys.stderr.isatty() and not arguments.quiet
    observer = Observer() if arguments.quiet else Live(sys.stderr) if live else Lines()
    once = {"fail_fast": arguments.fail_fast, "retry_failed": arguments.retry_failed}
    code = run_sweep(asked, observer, **once)
    if code == 130:
        print(f"interrupted. To go on: {command}", file=sys.stderr)
        return code
    from encoderkit.cli.compare import again, print_table
    from encoderkit.report.table import compare

    print_table(compare(asked.directory))
    if not arguments.quiet:
        again(asked.directory)
    return code


@contextmanager
def planning(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield what tells how far a plan is: on a terminal at once, else by a line now and then."""
    moving, spoken = sys.stderr.isatty(), time.monotonic()

    def told(done: int, points: int) -> None:
        nonlocal spoken
        text = f"planning: {done} of {points} checked"
        if moving:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - spoken > PATIENCE:
            print(text, file=sys.stderr, flush=True)
            spoken = time.monotonic()

    try:
        yield (lambda done, points: None) if quiet else told
    finally:
        if moving and not quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Lines(Observer):
    """One line for each cell that ends."""

    def begin(self, view: View) -> None:
        """Say how many cells were done before."""
        if view.skipped:
            print(f"{view.skipped} were done before", flush=True)
        if view.failed:
            hint = "--retry-failed runs them again"
            print(f"{view.failed} failed before; {hint}", flush=True)

    def ended(self, ended: Ended, view: View) -> None:
        """Print the cell's line."""
        if not ended.skipped:
            print(f"[{view.done + view.failed}/{view.cells}] {line(ended)}", flush=True)

    def again(self, ended: Ended, view: View) -> None:
        """Say that a cell is run once more."""
        print(f"{line(ended)}; trying again", flush=True)

    def held(self, cell: object, view: View) -> None:
        """Say that another process has the cell."""
        print(f"another process runs {getattr(cell, 'name', cell)}; looking again", flush=True)


class Live(Lines):
    """The same lines, and one that moves below them."""

    def __init__(self, out: TextIO) -> None:
        self.out = out

    def tick(self, view: View) -> None:
        """Write the moving line over itself."""
        left = "" if view.remaining is None else f", about {view.remaining:.0f} s left"
        speed, best = view.tokens_per_second, "; ".join(map(str, view.best))
        parts = [f"{view.counts} after {view.seconds:.0f} s{left}"]
        parts += [] if speed is None else [f"{speed:,.0f} tokens/s a run"]
        parts += [best] * bool(best)
        columns = shutil.get_terminal_size().columns
        self.out.write(f"\r\x1b[K{'; '.join(parts)[: columns - 1]}")
        self.out.flush()

    def ended(self, ended: Ended, view: View) -> None:
        """Print the cell's line above the moving one."""
        self.out.write("\r\x1b[K")
        self.out.flush()
        super().ended(ended, view)

    def finish(self, view: View, interrupted: bool) -> None:
        """Leave a clean line."""
        self.out.write("\r\x1b[K")
        self.out.flush()


def line(ended: Ended) -> str:
    """Return one cell's result in words."""
    value = "" if ended.value is None else f" {ended.metric} {ended.value:.4f}"
    failed = ended.state in ("error", "killed", "timeout")
    log = f" ({ended.log})" if ended.log.is_file() else ""
    why = f": {ended.reason.splitlines()[0]}{log}" if failed and ended.reason else ""
    best = ", the best so far" * ended.leads
    return (
        f"{ended.label} seed={ended.seed} {ended.state}{value} in {ended.seconds:.1f} s{best}{why}"
    )
