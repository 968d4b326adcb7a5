"""Random numbers: none in eval; in training those that (seed, step, path) name."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from encoderkit.testing.bench import Bench
from encoderkit.testing.case import Case, distance, ladder, near, require
from encoderkit.testing.examine import proves
from encoderkit.testing.subject import STREAM, Subject

SMALL = ladder(((1,), (2,), (3, 0, 2)))
TRAIN = ladder(((2,), (3, 0, 2)), Case(train=True))


def generators() -> tuple[Any, ...]:
    """Return the state of every global generator that a part could draw from."""
    import numpy

    state = pickle.dumps(numpy.random.get_state())
    return torch.get_rng_state().tolist(), random.getstate(), state


def stir(seed: int) -> None:
    """Put every global generator elsewhere."""
    import numpy

    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def undisturbed(run: Callable[[], Tensor], what: str) -> Tensor:
    """Return what `run` returns.

    Errors: Broken when it moves a global generator.
    """
    before = generators()
    y = run()
    require(generators() == before, f"{what} draws from a global generator")
    return y


@proves("in eval nothing is drawn, and two calls are bit-equal", STREAM, SMALL)
def eval_draws_nothing(subject: Subject, case: Case) -> float:
    """Call twice under different global generators."""
    bench, x = subject.bench(case), subject.tokens(case)
    stir(1)
    first = undisturbed(lambda: subject.run(bench, x, case.lengths), "a call in eval")
    stir(2)
    return near(subject.run(bench, x, case.lengths, step=1), first, 0, "two calls in eval")


@proves("in training with the usual options nothing is drawn", STREAM, TRAIN, unless="stochastic")
def train_draws_nothing(subject: Subject, case: Case) -> float:
    """Call twins at different steps."""
    bench, x = subject.bench(case), subject.tokens(case)
    twin = copy.deepcopy(bench)
    stir(1)
    first = undisturbed(lambda: subject.run(bench, x, case.lengths, step=0), "training")
    stir(2)
    return near(subject.run(twin, x, case.lengths, step=1), first, 0, "two training steps")


@proves("a training step repeats bit for bit, whatever was drawn before", STREAM, TRAIN)
def train_repeats(subject: Subject, case: Case) -> float:
    """Call twins at one step under different global generators."""
    bench, x = subject.bench(case), subject.tokens(case)
    twin = copy.deepcopy(bench)
    stir(1)
    first = subject.run(bench, x, case.lengths, step=3)
    stir(2)
    return near(subject.run(twin, x, case.lengths, step=3), first, 0, "one step, twice")


def _without_dropout(subject: Subject) -> str:
    if not isinstance(getattr(subject.options, "dropout", None), float):
        return "it has no option named dropout"
    needs = {spec.name: spec.metadata.get("needs") for spec in fields(subject.options)}
    served = needs["dropout"] is None or needs["dropout"] in subject.traits.serves
    return "" if served else "serves does not name dropout, so that it is refused"


def _dropping(subject: Subject, case: Case, rate: float, layer: int = 0) -> Bench:
    return subject.with_options(dropout=rate).bench(case, layer=layer)


@proves("dropout is off in eval", STREAM, SMALL, given=_without_dropout)
def dropout_in_eval(subject: Subject, case: Case) -> float:
    """Compare dropout=0.5 with dropout=0."""
    x = subject.tokens(case)
    y, z = (subject.run(_dropping(subject, case, p), x, case.lengths) for p in (0.0, 0.5))
    return near(z, y, 0, "dropout=0 and dropout=0.5")


@proves(
    "dropout differs from step to step and layer to layer, and repeats within a step",
    STREAM,
    ladder(((8, 0, 5),), Case(train=True, d_ff=16, width=8)),
    given=_without_dropout,
)
def dropout_is_keyed(subject: Subject, case: Case) -> float:
    """Compare steps, layers and global generators at dropout=0.5."""
    x = subject.tokens(case)

    def at(step: int, layer: int, seed: int) -> Tensor:
        stir(seed)
        bench = _dropping(subject, case, 0.5, layer)
        return subject.run(bench, x, case.lengths, step=step)

    first = at(0, 0, 1)
    near(at(0, 0, 2), first, 0, "one step under two global seeds")
    require(distance(at(1, 0, 1), first) > 0, "steps 0 and 1 drop the same")
    require(distance(at(0, 1, 1), first) > 0, "layers 0 and 1 drop the same")
    return 0.0


@proves(
    "dropout keeps the mean: what stays is divided by 1 - p",
    STREAM,
    ladder(((3, 2),), Case(train=True)),
    given=_without_dropout,
)
def dropout_keeps_the_mean(subject: Subject, case: Case) -> float:
    """Compare the mean of 400 steps with the result without dropout; off by how many sigmas."""
    x = subject.tokens(case)
    bench = _dropping(subject, case, 0.5)
    with torch.no_grad():
        plain = subject.run(_dropping(subject, replace(case, train=False), 0.0), x, case.lengths)
        steps = [subject.run(bench, x, case.lengths, step=n) for n in range(400)]
    drawn = torch.stack(steps)  # (400, N, D)
    sigma = drawn.std(0) / 400**0.5 + 1e-12
    off = float(((drawn.mean(0) - plain).abs() / sigma).max())
    require(off < 6, f"the mean of 400 steps is off by {off:.1f} sigma")
    return 0.0
