"""How fast `encoderkit sweep` is beside plain Hydra, on the same cells, quiet and busy.

    python benchmarks/sweep.py [--repeats N] [--quick]

Seconds are of whole commands, each in a fresh directory. In a repeat every system runs once under
each load, in rotated order; ratios are taken within it. All must train the same configurations to
the same metrics, to the bit where torch has one thread. Busy is beside a process that keeps one
core busy; nothing else should run: see the load average.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml

import encoderkit
from encoderkit.config.check import plain
from encoderkit.sweep.runner import cores

PLAIN = str(Path(__file__).with_name("plain_hydra.py"))
OURS = "encoderkit sweep"
BASIC = "Hydra basic, 1 thread"
LOADS = ["quiet", "busy"]
CLOSE = 0.05  # of a metric: how far several threads may take it in these few steps


@dataclass(frozen=True, slots=True)
class Workload:
    """Cells: every choice of the axes with every seed, each trained for a few steps."""

    axes: Mapping[str, Sequence[str]]
    seeds: int
    steps: int

    @property
    def fixed(self) -> list[str]:
        """The overrides that all cells have."""
        once = ["train.warmup=2", "train.eval_every=0", "train.judge_stall=false"]
        return ["model=tiny", f"train.steps={self.steps}", *once, "run.threads=1"]

    @property
    def points(self) -> list[list[str]]:
        """The overrides of each cell that others have not."""
        axes = {**self.axes, "seed": range(self.seeds)}
        columns = ([f"{key}={value}" for value in values] for key, values in axes.items())
        return [list(point) for point in itertools.product(*columns)]


TWO = {"norm": ["layernorm", "rmsnorm"], "placement": ["pre", "post"]}
FULL = [
    Workload(TWO, seeds=2, steps=60),  # about 1 s of training a cell
    Workload({**TWO, "ffn": ["gelu", "swiglu"]}, seeds=4, steps=6),  # about 0.1 s
]
QUICK = [Workload(TWO, seeds=1, steps=6)]


@dataclass(frozen=True, slots=True)
class System:
    """Commands that run all cells, so many at once; `exact` systems end with the same bits."""

    commands: list[list[str]]
    at_once: int = 1
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Reading:
    """One run of a system; `neighbour` is that process's speed meanwhile, of its own alone."""

    seconds: float
    metrics: dict[str, dict[str, float]]  # by configuration
    training: float  # seconds of a cell
    neighbour: float


def systems(work: Workload, conf: Path) -> dict[str, System]:
    """Return what is measured, by name."""
    axes = [f"{key}={','.join(values)}" for key, values in work.axes.items()]
    ours = [sys.executable, "-m", "encoderkit", "sweep", "--quiet", *work.fixed, *axes]
    hydra = [sys.executable, PLAIN, f"--config-dir={conf}"]
    multirun = [*hydra, "-m", *axes, f"seed={','.join(map(str, range(work.seeds)))}"]
    joblib = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={cores()}"]
    singly = [[*hydra, *p, f"hydra.run.dir=cell{k}"] for k, p in enumerate(work.points)]
    many = torch.get_num_threads()  # what torch does where nobody says another number
    found = {
        OURS: System([[*ours, f"seeds={work.seeds}"]]),
        BASIC: System([multirun]),
        f"Hydra basic, {many} threads": System([[*multirun, f"run.threads={many}"]], exact=False),
        f"Hydra joblib, {cores()} jobs": System([[*multirun, *joblib]]),
        f"process a cell, {cores()} at once": System(singly, at_once=cores()),
    }
    slow = {"process a cell, one at a time": System(singly)}
    return found | slow if len(singly) <= 8 else found


def write_conf(work: Workload, conf: Path) -> None:
    """Write the configuration as files for plain Hydra: a group for each axis, and the rest."""
    whole = plain(encoderkit.configure(*work.fixed))
    for kind, names in work.axes.items():
        (conf / kind).mkdir(parents=True)
        for name in names:
            chosen = plain(encoderkit.configure(*work.fixed, f"{kind}={name}"))
            (conf / kind / f"{name}.yaml").write_text(yaml.safe_dump(chosen[kind]), "utf-8")
        del whole[kind]
    defaults = [*({kind: names[0]} for kind, names in work.axes.items()), "_self_"]
    whole |= {"seed_init": "${seed}", "seed_data": "${seed}", "defaults": defaults}
    (conf / "config.yaml").write_text(yaml.safe_dump(whole), "utf-8")


def run(system: System, place: Path, count: Any, alone: float) -> Reading:
    """Run a system in an empty directory."""
    before, start = count.value, time.perf_counter()
    with ThreadPoolExecutor(system.at_once) as pool:
        list(pool.map(execute, system.commands, itertools.repeat(place)))
    seconds, work = time.perf_counter() - start, count.value - before
    metrics, training = {}, []
    for file in [*place.rglob("result.json"), *place.rglob("record.json")]:
        found = json.loads(file.read_text("utf-8"))
        if file.name == "record.json":  # ours has its configuration in a file of its own
            found["config"] = yaml.safe_load(file.with_name("config.yaml").read_text("utf-8"))
        what = {k: v for k, v in found["config"].items() if k not in ("run", "sweep")}
        metrics[json.dumps(what, sort_keys=True)] = found["metrics"]
        training.append(found["seconds"]["train"])
    return Reading(seconds, metrics, median(training or [0.0]), work / seconds / alone)


def execute(command: list[str], place: Path) -> None:
    """Run one command, and exit if it fails."""
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")


def require_same(readings: Mapping[str, Reading], kinds: Mapping[str, System], cells: int) -> None:
    """Exit unless all systems trained the same configurations to the same metrics."""
    ours = readings[OURS].metrics
    for name, reading in readings.items():
        if len(ours) != cells or reading.metrics.keys() != ours.keys():
            sys.exit(f"{name} and {OURS} trained other cells. These seconds compare nothing.")
        within = 0.0 if kinds[name].exact else CLOSE
        for cell, expected in ours.items():
            found = reading.metrics[cell]
            near = (abs(found[key] - expected[key]) <= within * abs(found[key]) for key in found)
            if found.keys() != expected.keys() or not all(near):
                sys.exit(f"{name}: {found} and {OURS}: {expected}. Other work in {cell}.")


def spin(count: Any) -> None:
    """Multiply matrices on one core, and count them, as long as the parent lives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to hear
    torch.set_num_threads(1)
    parent, x = multiprocessing.parent_process(), torch.eye(256)
    while parent is not None and parent.is_alive():
        x = x @ x
        count.value += 1


@contextmanager
def neighbour(load: str) -> Iterator[tuple[Any, float]]:
    """Yield the neighbour's count and how many a second it does alone; the quiet one does none."""
    context = multiprocessing.get_context("spawn")
    count = context.RawValue("q", 0)
    if load == "quiet":
        yield count, 1.0
        return
    process = context.Process(target=spin, args=(count,), daemon=True)
    process.start()
    try:
        while not count.value and process.is_alive():
            time.sleep(0.1)
        before, start = count.value, time.perf_counter()
        time.sleep(2)
        yield count, (count.value - before) / (time.perf_counter() - start)
    finally:
        process.kill()
        process.join()


def measure(work: Workload, repeats: int) -> None:
    """Run a workload under both loads and print its table."""
    readings: dict[tuple[str, str], list[Reading]] = defaultdict(list)
    cells = len(work.points)
    with tempfile.TemporaryDirectory() as place:
        write_conf(work, Path(place, "conf"))
        kinds = systems(work, Path(place, "conf"))
        print(f"{cells} cells of {work.steps} steps, {cores()} cores", flush=True)
        for repeat, load in ((k, word) for k in range(repeats) for word in rotated(LOADS, k)):
            before, found = os.getloadavg()[0], {}
            with neighbour(load) as (count, alone):
                for name in rotated(list(kinds), repeat):
                    with tempfile.TemporaryDirectory(dir=place) as fresh:
                        found[name] = run(kinds[name], Path(fresh), count, alone)
                    readings[load, name].append(found[name])
            require_same(found, kinds, cells)
            print(f"repeat {repeat + 1}, {load}: load average {before:.1f} before", flush=True)
    table(readings, list(kinds), cells)


def rotated(items: list[str], k: int) -> list[str]:
    """Return the items from the k-th on, and then those before it."""
    return items[k % len(items) :] + items[: k % len(items)]


def table(readings: Mapping[tuple[str, str], list[Reading]], names: list[str], cells: int) -> None:
    """Print a workload's medians, and its ratios within repeats as median (lowest..highest)."""
    print(f"training a cell: {median(each.training for each in readings['quiet', BASIC]):.2f} s")
    titles = f"{'its seconds / ours':>22}{'of its quiet speed':>22}{'neighbour':>11}"
    print(f"{'load':6}{'system':32}{'cells/min':>10}{titles}")
    for load, name in itertools.product(LOADS, names):
        here, ours, quiet = readings[load, name], readings[load, OURS], readings["quiet", name]
        speed = 60 * cells / median(each.seconds for each in here)
        row = f"{load:6}{name:32}{speed:10.1f}{ratio(here, ours):>22}"
        if load == "busy":
            row += f"{ratio(quiet, here):>22}{median(each.neighbour for each in here):11.2f}"
        print(row)
    print(flush=True)


def ratio(above: list[Reading], below: list[Reading]) -> str:
    """Return the ratios of seconds, pair by pair, in words."""
    found = [a.seconds / b.seconds for a, b in zip(above, below, strict=True)]
    return f"{median(found):.2f} ({min(found):.2f}..{max(found):.2f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--quick", action="store_true", help="a few short cells, once")
    asked = parser.parse_args()
    for workload in QUICK if asked.quick else FULL:
        measure(workload, 1 if asked.quick else asked.repeats)
