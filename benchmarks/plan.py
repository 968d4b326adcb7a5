"""How long a plan of 1,000 cells takes, and where the time goes.

    python benchmarks/plan.py

Every stage is counted without those inside it: one thread, CPU seconds of this process.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

import encoderkit
from encoderkit.config.compose import Composer
from encoderkit.nn import build, cost
from encoderkit.sweep import plan as planning
from encoderkit.sweep.draft import Draft, Tasks
from encoderkit.sweep.variant import Counts

AXES = [
    "norm=layernorm,rmsnorm,scalenorm,dyt,none",
    "placement=pre,post,sandwich,reordered,layerscale",
    "ffn=relu,gelu,silu,swiglu,geglu",
    "attention=naive,sdpa",
]
MORE = ["position=none,sinusoidal,learned,rope"]
STAGES: list[tuple[str, Any, str]] = [
    ("grid", planning, "grid"),
    ("compose and check", Composer, "configure"),
    ("tasks", Tasks, "facts"),
    ("keys of models", Counts, "facts"),
    ("meta builds", build, "build_model"),
    ("FLOPs", cost, "flops"),
    ("identities and trees", Draft, "cells"),
    ("factors", planning, "_outlines"),
]


class Clock:
    """CPU seconds by stage; a stage inside another one stops the outer one's clock."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {"rest": 0.0}
        self._running = ["rest"]
        self._since = time.process_time()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what runs inside for one stage."""
        self._switch()
        self._running.append(name)
        try:
            yield
        finally:
            self._switch()
            self._running.pop()

    def _switch(self) -> None:
        now = time.process_time()
        stage = self._running[-1]
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._since
        self._since = now

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, counted for a stage."""

        @functools.wraps(function)
        def run(*args: Any, **named: Any) -> Any:
            with self.stage(name):
                return function(*args, **named)

        return run


def measure(title: str, words: list[str], seeds: int) -> None:
    """Plan a sweep and print its seconds."""
    start, clock = time.perf_counter(), Clock()
    patches = [
        mock.patch.object(home, name, clock.timed(stage, getattr(home, name)))
        for stage, home, name in STAGES
    ]
    for patch in patches:
        patch.start()
    try:
        with clock.stage("rest"):
            found = encoderkit.plan(words, seeds=seeds)
    finally:
        for patch in patches:
            patch.stop()
    wall, cpu = time.perf_counter() - start, sum(clock.seconds.values())
    print(f"{title}: {len(found)} cells of {len(found.labels)} variants")
    print(f"  {wall:6.1f} s in all, {cpu:.1f} s of CPU")
    for name in [*(stage for stage, _, _ in STAGES), "rest"]:
        print(f"  {clock.seconds.get(name, 0.0):6.1f} s  {name}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    measure("seeds", AXES, seeds=4)
    measure("variants", [*AXES, *MORE], seeds=1)
