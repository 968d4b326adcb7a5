from __future__ import annotations

import pytest
import torch
from torch import nn

from encoderkit.config.schema import TrainOptions
from encoderkit.train import decay_groups
from encoderkit.train.optim import optimizer, rate


def options(**values: object) -> TrainOptions:
    return TrainOptions(**{"steps": 10, "batch": 1, "warmup": 4, "lr": 1.0, **values})  # type: ignore[arg-type]


def test_linear_warms_up_and_decays() -> None:
    rates = [rate(options(), step) for step in range(10)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:] == pytest.approx([1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


def test_constant_stays() -> None:
    rates = [rate(options(schedule="constant", lr=3.0), step) for step in range(10)]
    assert rates == [0.75, 1.5, 2.25] + [3.0] * 7


@pytest.mark.parametrize("schedule", ["linear", "constant"])
def test_warm_up_may_be_none_or_all(schedule: str) -> None:
    assert rate(options(schedule=schedule, warmup=0), 0) == 1.0
    assert rate(options(schedule=schedule, warmup=10), 9) == 1.0


class Part(nn.Module):
    def __init__(self, decay: bool | None) -> None:
        super().__init__()
        if decay is not None:
            self.weight_decay = decay
        self.gain = nn.Parameter(torch.ones(2))
        self.matrix = nn.Linear(2, 2)
        self.table = nn.Embedding(2, 2)
        self.cube = nn.Parameter(torch.ones(2, 2, 2))


def test_matrices_decay_and_embeddings_and_vectors_do_not() -> None:
    assert decay_groups(Part(None)) == {
        "decay": ["cube", "matrix.weight"],
        "no_decay": ["gain", "matrix.bias", "table.weight"],
    }


def test_a_part_may_say_otherwise_and_the_innermost_counts() -> None:
    inner = Part(False)
    outer = nn.ModuleDict({"a": Part(True), "b": nn.Sequential(inner), "c": Part(None)})
    outer["a"].matrix.weight_decay = False
    groups = decay_groups(outer)
    assert [name for name in groups["decay"] if name[0] in "ab"] == [
        "a.gain",
        "a.cube",
        "a.table.weight",
    ]
    assert [name for name in groups["decay"] if name[0] == "c"] == ["c.cube", "c.matrix.weight"]
    assert len(sum(groups.values(), [])) == len(list(outer.parameters()))


def test_frozen_and_tied_parameters_are_listed_as_they_are_trained() -> None:
    part = Part(None)
    part.cube.requires_grad_(False)
    part.table.weight = part.matrix.weight
    assert decay_groups(part) == {"decay": ["matrix.weight"], "no_decay": ["gain", "matrix.bias"]}


def test_adamw_has_the_options() -> None:
    made = optimizer(Part(None), options(weight_decay=0.3, beta1=0.5, beta2=0.7, lr=0.1))
    decay, none = made.param_groups
    assert (decay["weight_decay"], none["weight_decay"]) == (0.3, 0.0)
    assert [len(group["params"]) for group in (decay, none)] == [2, 3]
    for group in (decay, none):
        assert (group["betas"], group["lr"], group["fused"]) == ((0.5, 0.7), 0.1, True)


def test_only_the_decay_group_shrinks_without_a_gradient() -> None:
    part = Part(None)
    before = {name: p.detach().clone() for name, p in part.named_parameters()}
    for parameter in part.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer(part, options(weight_decay=0.5, lr=0.1)).step()
    for name, parameter in part.named_parameters():
        shrink = 0.95 if name in ("cube", "matrix.weight") else 1.0
        assert torch.allclose(parameter, before[name] * shrink), name
