from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import encoderkit
from encoderkit_brackets import BracketsOptions
from encoderkit_brackets.task import Brackets


def matched(tokens: list[int], closer: int) -> dict[int, int]:
    """Return the sort at each closer, by striking out neighbours that match."""
    found: dict[int, int] = {}
    left = list(enumerate(tokens))
    while left:
        at = next(i for i in range(1, len(left)) if left[i][1] == closer != left[i - 1][1])
        found[left[at][0]] = left[at - 1][1]
        del left[at - 1 : at + 1]
    return found


def test_targets_are_the_openers_that_match() -> None:
    task = Brackets(BracketsOptions(pairs=9, sorts=3), seed=0)
    for batch in [*(task.batch(k, 16) for k in range(3)), *task.evaluation()]:
        assert batch.index is not None
        expected: dict[int, int] = {}
        start = 0
        for tokens in batch.tokens.split(batch.lengths):
            expected |= {start + at: sort for at, sort in matched(tokens.tolist(), 3).items()}
            start += len(tokens)
        assert dict(zip(batch.index.tolist(), batch.targets.tolist(), strict=True)) == expected


def test_lengths_and_sorts_take_all_their_values() -> None:
    batch = Brackets(BracketsOptions(pairs=4, sorts=3), seed=0).batch(0, 200)
    assert set(batch.lengths) == {2, 4, 6, 8}
    share = batch.targets.bincount(minlength=3) / len(batch.targets)
    assert share.min() > 0.25


def test_a_model_that_knows_nothing_has_the_trivial_loss() -> None:
    task = Brackets(BracketsOptions(sorts=5), seed=0)
    for batch in task.evaluation():
        logits = torch.zeros(len(batch.targets), 5, dtype=torch.float64)
        mean = float(task.loss(logits, batch)) / len(batch.targets)
        assert mean == pytest.approx(task.trivial_loss, rel=1e-12)
    assert task.trivial_loss == math.log(5)


@pytest.mark.parametrize("count", [1, 64, 65, 130])
def test_the_evaluation_has_as_many_sequences_as_asked(count: int) -> None:
    task = Brackets(BracketsOptions(eval_sequences=count), seed=0)
    assert sum(len(batch.lengths) for batch in task.evaluation()) == count


def test_it_can_be_learnt() -> None:
    task = Brackets(BracketsOptions(pairs=6, sorts=4), seed=0)
    torch.manual_seed(0)
    ends = nn.ModuleList([nn.Embedding(task.vocab, 64), nn.Linear(64, task.outputs)])
    stack = encoderkit.build("model.n_layers=1")
    optimizer = torch.optim.Adam([*ends.parameters(), *stack.parameters()], lr=3e-3)
    losses = []
    for k in range(60):
        batch = task.batch(k, 32)
        logits = ends[1](stack(ends[0](batch.tokens), lengths=batch.lengths)[batch.index])
        loss = task.loss(logits, batch) / len(batch.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) / 5 < 0.75 * task.trivial_loss
