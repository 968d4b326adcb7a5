"""A small model with everything a checkpoint must hold, and a small ragged task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from encoderkit.config.schema import RunOptions, TrainOptions
from encoderkit.data import Batch, Task, epoch_rows
from encoderkit.train import Outcome, Watch, fit


class Model(nn.Module):
    """Running statistics, draws from the global generator, a part's loss, state of its own."""

    def __init__(self, dtype: torch.dtype, *, coupled: bool, drop: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 8, dtype=dtype)
        self.norm = nn.BatchNorm1d(8, dtype=dtype) if coupled else nn.LayerNorm(8, dtype=dtype)
        self.head = nn.Linear(8, 5, dtype=dtype)
        self.drop, self.calls, self.poison = drop, 0, 0.0
        self.steps: list[int | None] = []

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]

    def logits(
        self,
        tokens: Tensor,
        lengths: list[int],
        index: Tensor | None,
        *,
        step: Any = None,
        out: Any = None,
    ) -> Tensor:
        assert sum(lengths) == len(tokens)
        self.steps.append(step)
        self.calls += 1
        x = F.dropout(self.norm(self.embed(tokens)), self.drop, self.training)
        if out is not None:
            out.loss("size", x.square().mean())
            out.record("x", x)
        if self.training and step is not None and step >= 2:
            x = x + self.poison
        return self.head(x if index is None else x[index])  # type: ignore[no-any-return]


class Count(Task):
    """A token is its own class; 20 ragged rows an epoch, of which some tokens are scored."""

    vocab = outputs = 5
    trivial_loss, data_hash = 1.6, "0" * 12

    def __init__(self, opts: Any, seed: int) -> None:
        super().__init__(opts, seed)
        draws = self.draws("rows", 0)
        lengths = torch.randint(1, 9, (20,), generator=draws).tolist()
        self.rows = [torch.randint(5, (length,), generator=draws) for length in lengths]

    def batch(self, k: int, size: int) -> Batch:
        rows = epoch_rows(self.seed, k, size, len(self.rows)).tolist()
        return self._score(rows, self.draws("train", k))

    def evaluation(self) -> Iterator[Batch]:
        for k in range(3):
            yield self._score(list(range(4 + k)), self.draws("eval", k))

    def _score(self, rows: list[int], draws: torch.Generator) -> Batch:
        tokens = torch.cat([self.rows[row] for row in rows])
        index = torch.rand(len(tokens), generator=draws).topk(len(rows)).indices.sort().values
        return Batch(tokens, [len(self.rows[row]) for row in rows], index, tokens[index])


class StopAt(Watch):
    """Stops when it has been asked often enough, or at a step."""

    def __init__(self, *, asked: int | None = None, step: int | None = None) -> None:
        self.asked, self.step, self.count, self.seen = asked, step, 0, 0

    def stop(self) -> str:
        self.count += 1
        enough = self.count == self.asked or self.seen == self.step
        return "asked to" if enough else ""

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        assert tokens_per_second > 0
        self.seen = step


def make(dtype: torch.dtype = torch.float32, *, coupled: bool = True, drop: float = 0.1) -> Model:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Model(dtype, coupled=coupled, drop=drop)


OPTIONS = {"steps": 7, "batch": 6, "warmup": 2, "eval_every": 3, "lr": 0.01, "judge_stall": False}


def train(
    directory: Any = None,
    watch: Watch | None = None,
    *,
    model: Model | None = None,
    run: dict[str, Any] | None = None,
    identity: str = "a",
    trivial: float = 1.6,
    **options: Any,
) -> tuple[Model, Outcome]:
    model = make() if model is None else model
    settings = TrainOptions(**{**OPTIONS, **options})
    where = RunOptions(**{"device": "cpu", "checkpoint_every": 2, **(run or {})})
    task = Count(None, 0)
    task.trivial_loss = trivial
    outcome = fit(model, task, settings, where, directory, identity=identity, watch=watch)
    return model, outcome


@pytest.fixture(scope="session")
def trained() -> Callable[..., tuple[Model, Outcome]]:
    return train


@pytest.fixture(scope="session")
def stand_in() -> Callable[..., Model]:
    return make


@pytest.fixture(scope="session")
def stop_at() -> type[StopAt]:
    return StopAt


@pytest.fixture
def count_task() -> Count:
    return Count(None, 0)
