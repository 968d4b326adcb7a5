"""`encoderkit train -m`: the cells of a plan, handed out by Hydra's multirun and its launchers."""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from encoderkit.cli.dry_run import beforehand, size
from encoderkit.cli.sweep import line, planning
from encoderkit.config.compose import Composer
from encoderkit.config.identity import identity
from encoderkit.config.launch import check_launcher, multirun
from encoderkit.config.schema import Config
from encoderkit.errors import ConfigError, Fault, StoreError
from encoderkit.plugins import registry
from encoderkit.sweep import lock, record
from encoderkit.sweep.asked import Asked, deaf, listen
from encoderkit.sweep.plan import Plan, plan
from encoderkit.sweep.runner import Ended, Observer, View, cores, exit_code, run_cells, states

# How a launcher is told how many cells to run at once, in Hydra's words. Submitit would end a cell
# after an hour; what a cell may take is for sweep.timeout to say.
AT_ONCE = {
    "joblib": ("hydra.launcher.n_jobs={jobs}",),
    "submitit_local": ("hydra.sweeper.max_batch_size={jobs}", "hydra.launcher.timeout_min=525600"),
}


GRACE = 25.0  # seconds for a cell to stop in order


def run(arguments: argparse.Namespace) -> int:
    """Plan everything first, then let Hydra launch it; the exit code comes from the records."""
    hydras = [w for w in arguments.overrides if w.lstrip("+").startswith(("hydra/", "hydra."))]
    ours = [word for word in arguments.overrides if word not in hydras]
    command = shlex.join(["encoderkit", "train", "-m", *arguments.overrides])
    with Composer(registry(), arguments.config_dir) as composer:
        launcher = check_launcher(composer, hydras)
        spelled = composer.spelled(ours)
    with planning(arguments.quiet) as told:
        asked = plan(ours, config_dirs=arguments.config_dir, command=command, told=told)
    _refuse(asked, launcher)
    asked.save()
    print(f"{size(asked)} in {asked.directory}", flush=True)
    for text in () if arguments.quiet else beforehand(asked):
        print(f"note: {text}", flush=True)
    seeds = ",".join(dict.fromkeys(str(cell.seed) for cell in asked.cells))
    skip = ("seed=", "seeds=", "jobs=", "sweep.")
    points = [word for word in spelled if not word.startswith(skip)] + [f"seed={seeds}"]
    jobs = asked.sweep.jobs or max(1, cores() // asked.threads)
    sized = [word.format(jobs=jobs) for word in AT_ONCE.get(launcher, ())]
    whole = replace(asked, directory=asked.directory.absolute())  # a part may change the directory
    # Hydra writes a multirun.yaml of its own, and an interrupted launcher writes to the end.
    with tempfile.TemporaryDirectory(prefix="encoderkit-", ignore_cleanup_errors=True) as scratch:
        place = Path(scratch)
        job = functools.partial(_job, whole, place, os.getpid(), arguments)
        words, lost = [*sized, *hydras, *points], None
        launching = _launching(place, asked)
        with lock.attend(asked.directory), launching as orders, suppress(KeyboardInterrupt):
            lost = multirun(words, arguments.config_dir, job, place)
    if lost is None or orders():
        print(f"interrupted. To go on: {command}", file=sys.stderr)
        return 130
    return _report(asked, lost, command)


@contextmanager
def _launching(place: Path, asked: Plan) -> Iterator[Asked]:
    """Hold the lock of `place` until the first order to stop; a second one raises.

    A launcher that is interrupted kills its processes. They hear of the first order by the lock,
    and when no cell runs any more the second one is given here.
    """
    over, main = threading.Event(), threading.main_thread()

    def again() -> None:
        while not over.wait(0.2):
            if record.RUNNING not in states(asked).values():
                signal.pthread_kill(main.ident or 0, signal.SIGINT)
                return

    def order() -> None:
        held.close()
        threading.Thread(target=again, daemon=True).start()

    with ExitStack() as held, listen(signal.SIGINT, signal.SIGTERM, patience=1) as orders:
        held.enter_context(lock.hold(place, 0.0))
        orders.told = order
        try:
            yield orders
        finally:
            over.set()


def _report(asked: Plan, lost: Sequence[str], command: str) -> int:
    """Print how the cells ended, and return the exit code."""
    found = states(asked)
    counts = {state: list(found.values()).count(state) for state in dict.fromkeys(found.values())}
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    for text in lost:
        print(f"lost: {text}", file=sys.stderr)
    code = exit_code(found.values())
    if "missing" not in counts:
        from encoderkit.cli.compare import again, print_table
        from encoderkit.report.table import compare

        print_table(compare(asked.directory))
        again(asked.directory)
    if code:
        failed = not record.FAILURES.isdisjoint(found.values())
        print(f"To run what is not done: {command}{' --retry-failed' * failed}", file=sys.stderr)
    return code


def _refuse(asked: Plan, launcher: str) -> None:
    """Refuse what Hydra's own sweeper cannot span, or its launcher not do.

    Errors: ConfigError.
    """
    sweep = asked.sweep
    names = ("zip", "one_at_a_time", "also", "optional", "exclude")
    said = [f"sweep.{name}" for name in names if getattr(sweep, name)]
    said += ["sweep.match"] * (sweep.match != "none") + ["sweep.budget"] * (sweep.budget != "steps")
    problem = "is beyond Hydra's multirun, which spans a plain grid."
    faults = [Fault(each, problem, "Type `encoderkit sweep`.") for each in said]
    if launcher == "basic" and (sweep.jobs or 1) > 1:
        problem = "Hydra's launcher `basic` runs one cell at a time."
        faults.append(Fault(f"jobs={sweep.jobs}", problem, "Type hydra/launcher=joblib."))
    if faults:
        raise ConfigError(faults)


class Leash(Observer):
    """Stops what runs, in order, once the launching process is gone or was told to stop.

    That process holds the lock of `place`. Launchers would leave their processes behind.
    """

    def __init__(self, place: Path, quiet: bool) -> None:
        self.interrupted = False
        self._place = place
        self._quiet = quiet

    def stop(self) -> bool:
        """Look whether the launching process is there."""
        return is_over(self._place)

    def ended(self, ended: Ended, view: View) -> None:
        """Print the cell's line, in whatever process that is."""
        if not self._quiet and not ended.skipped:
            print(line(replace(ended, leads=False)), flush=True)  # of this process's one cell

    def finish(self, view: View, interrupted: bool) -> None:
        """Keep whether it was interrupted."""
        self.interrupted = interrupted


def is_over(place: Path) -> bool:
    """Tell whether the process that launches from `place` launches no more."""
    try:
        return lock.is_free(place)
    except FileNotFoundError:
        return True


@functools.cache
def _end_without(place: Path) -> None:
    """End this process, which a launcher made and may use again, some time after its launcher's.

    One that ended in order has removed `place`, and looks after its processes. Ctrl-C reaches the
    whole terminal, and launchers pass it on: it is the launching process's to hear.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, deaf)

    def watch() -> None:
        while not is_over(place):
            time.sleep(1.0)
        if place.exists():
            time.sleep(GRACE)
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _job(
    asked: Plan, place: Path, launching: int, said: argparse.Namespace, config: Config
) -> None:
    """Run one point of a plan, in a process of its own below the one that the launcher gives.

    Errors: StoreError when the plan has no such cell, or its files cannot be written.
    """
    if os.getpid() != launching:
        _end_without(place)
    if is_over(place):
        return _cut(launching)
    ids = {identity(config, each) for each in {cell.data_hash for cell in asked.cells}}
    cells = tuple(cell for cell in asked.cells if cell.id in ids)
    if not cells:
        raise StoreError(
            f"{asked.directory}: {' or '.join(sorted(ids))} is not in its plan: a part's source "
            "has changed since. Run the sweep again."
        )
    if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method(None, force=True)  # joblib's own, which no child knows
    one = replace(asked, cells=cells, sweep=replace(asked.sweep, jobs=1))
    leash = Leash(place, said.quiet)
    run_cells(one, leash, retry_failed=said.retry_failed)
    if leash.interrupted:
        _cut(launching)


def _cut(launching: int) -> None:
    """End the job of an interrupted launch; in the launching process, the launch too.

    What a job raises elsewhere lets a launcher kill the other jobs, which end in order.
    """
    if os.getpid() == launching:
        raise KeyboardInterrupt
