from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from encoderkit.data import Batch, Task
from encoderkit.errors import PluginError
from encoderkit.train.evaluate import evaluate

CPU = torch.device("cpu")


def nothing() -> None:
    pass


def test_scores_are_means_over_all_targets(stand_in: Any, count_task: Any) -> None:
    model = stand_in(torch.float64)

    def forward(batch: Batch) -> Tensor:
        assert not model.training and not torch.is_grad_enabled()
        return model.logits(batch.tokens, batch.lengths, batch.index)  # type: ignore[no-any-return]

    found = evaluate(model, count_task, forward, CPU, nothing)
    assert model.training and model.calls == 3
    batches = list(count_task.evaluation())
    assert len({len(batch.targets) for batch in batches}) == 3
    model.eval()
    with torch.no_grad():
        logits = torch.cat([forward(batch) for batch in batches])
    targets = torch.cat([batch.targets for batch in batches])
    loss = torch.nn.functional.cross_entropy(logits, targets)
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-12)
    assert found["accuracy"] == pytest.approx((logits.argmax(1) == targets).double().mean().item())


def test_a_part_that_draws_in_evaluation_does_not_reach_training(
    stand_in: Any, count_task: Any
) -> None:
    drawn: list[float] = []

    def forward(batch: Batch) -> Tensor:
        drawn.append(float(torch.rand(())))
        return torch.zeros(len(batch.targets), 5)

    state = torch.get_rng_state()
    for _ in range(2):
        evaluate(stand_in(), count_task, forward, CPU, nothing)
        assert torch.equal(torch.get_rng_state(), state)
        torch.rand(())
        state = torch.get_rng_state()
    assert drawn[:3] == drawn[3:] and len(set(drawn)) == 3


def test_training_goes_on_when_an_evaluation_is_left(stand_in: Any, count_task: Any) -> None:
    model, state = stand_in(), torch.get_rng_state()

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(model, count_task, lambda batch: torch.zeros(1), CPU, stop)
    assert model.training and torch.equal(torch.get_rng_state(), state)


class Empty(Task):
    def evaluation(self) -> Any:
        return iter([])


class Unscored(Empty):
    def evaluation(self) -> Any:
        none = torch.zeros(0, dtype=torch.int64)
        return iter([Batch(none, [0], none, none)])


class Nameless(Unscored):
    def evaluation(self) -> Any:
        one = torch.zeros(1, dtype=torch.int64)
        return iter([Batch(one, [1], None, one)])

    def scores(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"error": logits.sum()}


@pytest.mark.parametrize("cls", [Empty, Unscored, Nameless])
def test_a_task_that_scores_nothing_is_named(stand_in: Any, cls: type[Task]) -> None:
    def forward(batch: Batch) -> Tensor:
        return torch.zeros(len(batch.targets), 5)

    with pytest.raises(PluginError, match=f"the task {cls.__name__} must score at least one"):
        evaluate(stand_in(), cls(None, 0), forward, CPU, nothing)
