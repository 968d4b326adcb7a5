"""What tasks must do: batches that are pure functions, sums as losses, one evaluation for all."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from encoderkit.data import Batch, Task
from encoderkit.testing.case import Case, near, pieces, require
from encoderkit.testing.examine import proves
from encoderkit.testing.properties.draws import generators, stir
from encoderkit.testing.subject import Subject

ONE = (Case(variant="4 sequences"),)


def made(subject: Subject, seed: int = 0) -> Task:
    """Return the task, with its data."""
    task: Task = subject.chosen.entry.load()(subject.options, seed)
    return task


def contents(subject: Subject) -> list[Tensor]:
    """Return what one can see of a task."""
    task = made(subject)
    some = [task.batch(0, 4), task.batch(1, 4), *task.evaluation()]
    return [t for batch in some for t in _tensors(batch)]


def _tensors(batch: Batch) -> list[Tensor]:
    index = torch.arange(len(batch.tokens)) if batch.index is None else batch.index
    return [batch.tokens, torch.tensor(batch.lengths), index, batch.targets]


def _joined(batch: Batch) -> Tensor:
    return torch.cat([t.flatten().double() for t in _tensors(batch)])


@proves(
    "batch k is a function of (seed, k, size), and of nothing that was drawn before", ("task",), ONE
)
def batches_repeat(subject: Subject, case: Case) -> float:
    """Ask two tasks for batches in different orders."""
    one, two = made(subject), made(subject)
    stir(1)
    before = generators()
    first = [_joined(one.batch(k, 4)) for k in (0, 1, 2)]
    require(generators() == before, "a batch draws from a global generator")
    stir(2)
    second = [_joined(two.batch(k, 4)) for k in (2, 0, 1)]
    return max(near(b, first[k], 0, f"batch {k}") for k, b in zip((2, 0, 1), second, strict=True))


@proves("batches differ from k to k and seed to seed", ("task",), ONE)
def batches_differ(subject: Subject, case: Case) -> float:
    """Compare batches."""
    one, two = made(subject, 0), made(subject, 1)
    first = _joined(one.batch(0, 4))
    require(not torch.equal(first, _joined(one.batch(1, 4))), "batches 0 and 1 are equal")
    require(not torch.equal(first, _joined(two.batch(0, 4))), "seeds 0 and 1 give one batch")
    return 0.0


@proves("the evaluation is the same for every seed, and each time", ("task",), ONE)
def one_evaluation(subject: Subject, case: Case) -> float:
    """Compare evaluations."""
    one, two = made(subject, 0), made(subject, 1)
    first = torch.cat([_joined(batch) for batch in one.evaluation()])
    again = torch.cat([_joined(batch) for batch in one.evaluation()])
    other = torch.cat([_joined(batch) for batch in two.evaluation()])
    require(one.data_hash == two.data_hash, "data_hash depends on the seed")
    return max(near(again, first, 0, "a second time"), near(other, first, 0, "another seed"))


@proves(
    "tokens, lengths, index and targets fit together and into the sizes declared", ("task",), ONE
)
def fits(subject: Subject, case: Case) -> float:
    """Look at training and evaluation batches."""
    task = made(subject)
    require(math.isfinite(task.trivial_loss) and task.trivial_loss > 0, "trivial_loss is no loss")
    require(bool(re.fullmatch(r"[0-9a-f]{12}", task.data_hash)), "data_hash: 12 hex digits")
    require(len(task.batch(0, 4).lengths) == 4, "4 sequences were asked for")
    for batch in _all(task):
        tokens, _, index, targets = _tensors(batch)
        require(sum(batch.lengths) == len(tokens), "the lengths do not add up to the tokens")
        require(len(index) == len(targets), "index and targets differ in length")
        require(_within(tokens, task.vocab), "a token is outside the vocabulary")
        require(_within(targets, task.outputs), "a target is outside the outputs")
        require(_within(index, len(tokens)), "an index is outside the tokens")
    return 0.0


def _all(task: Task) -> Iterator[Batch]:
    yield from (task.batch(k, 4) for k in range(2))
    yield from task.evaluation()


def _within(t: Tensor, limit: int) -> bool:
    return t.dtype == torch.int64 and bool(((t >= 0) & (t < limit)).all())


@proves("loss and scores are sums: a batch in pieces adds up to the whole", ("task",), ONE)
def sums(subject: Subject, case: Case) -> float:
    """Split a batch, and add up."""
    task = made(subject)
    batch, off = task.batch(0, 4), 0.0
    draws = torch.Generator().manual_seed(0)
    size = (len(batch.tokens), task.outputs)
    logits = torch.randn(size, generator=draws, dtype=torch.float64)  # (N, outputs)
    whole = _scores(task, logits, batch)
    require("loss" in whole, "scores lack the loss")
    near(task.loss(_scored(logits, batch), batch), whole["loss"], 1e-12, "loss and its score")
    parted = batch.split(3)
    rows = pieces(logits, [len(part.tokens) for part in parted])
    parts = [_scores(task, *pair) for pair in zip(rows, parted, strict=True)]
    for name, value in whole.items():
        total = value.double()
        added = torch.stack([part[name].double() for part in parts]).sum()
        off = max(off, near(added / (1 + total), total / (1 + total), 1e-12, f"the pieces' {name}"))
    return off


def _scored(logits: Tensor, batch: Batch) -> Tensor:
    return logits if batch.index is None else logits[batch.index]


def _scores(task: Task, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
    return task.scores(_scored(logits, batch), batch)
