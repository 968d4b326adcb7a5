from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from encoderkit.config.schema import TrainOptions
from encoderkit.data import Batch
from encoderkit.train.step import Snapshot, Stepper, Unchanged

CPU = torch.device("cpu")


def stepper(model: Any, task: Any, **values: Any) -> Stepper:
    options = TrainOptions(**{"steps": 1, "batch": 1, "warmup": 0, "clip": None, **values})
    return Stepper(model, task, options, CPU)


def gradients(stand_in: Any, task: Any, parts: int, **values: Any) -> tuple[dict[str, float], Any]:
    model = stand_in(torch.float64, coupled=False, drop=0.0)
    batch = task.batch(0, 12)
    assert len(set(batch.lengths)) > 3
    step = stepper(model, task, **values)
    for part in batch.split(parts):
        step.add(part, batch, 0)
    return step.finish(), [p.grad for p in model.parameters()]


@pytest.mark.parametrize("parts", [2, 3, 5, 12])
def test_micro_batches_equal_one_batch(stand_in: Any, count_task: Any, parts: int) -> None:
    whole, expected = gradients(stand_in, count_task, 1)
    terms, found = gradients(stand_in, count_task, parts)
    assert terms == pytest.approx(whole, rel=1e-12)
    for one, two in zip(found, expected, strict=True):
        assert (one - two).abs().max() <= 1e-12
        assert two.abs().max() > 1e-4


def test_the_loss_is_the_mean_over_the_steps_targets(stand_in: Any, count_task: Any) -> None:
    model = stand_in(torch.float64, coupled=False, drop=0.0)
    batch = count_task.batch(0, 12)
    logits = model.logits(batch.tokens, batch.lengths, batch.index)
    mean = -torch.log_softmax(logits, 1).gather(1, batch.targets[:, None]).mean()
    terms, _ = gradients(stand_in, count_task, 3)
    assert terms["loss"] == pytest.approx(mean.item(), rel=1e-12)


def test_a_parts_loss_is_trained_and_named(stand_in: Any, count_task: Any) -> None:
    model = stand_in(torch.float64, coupled=False, drop=0.0)
    batch = count_task.batch(0, 12)
    size = model.norm(model.embed(batch.tokens)).square().mean()
    loss = count_task.loss(model.logits(batch.tokens, batch.lengths, batch.index), batch) / 12
    (loss + size).backward()
    terms, found = gradients(stand_in, count_task, 1)
    assert terms.keys() == {"loss", "part/size", "grad_norm"}
    assert terms["part/size"] == pytest.approx(size.item(), rel=1e-12)
    for one, two in zip(found, model.parameters(), strict=True):
        assert torch.allclose(one, two.grad, rtol=1e-12, atol=1e-15)


def test_records_are_not_kept(stand_in: Any, count_task: Any) -> None:
    outs = []
    model = stand_in()
    logits = model.logits
    model.logits = lambda *a, **k: (outs.append(k["out"]), logits(*a, **k))[1]
    batch = count_task.batch(0, 4)
    stepper(model, count_task).add(batch, batch, 0)
    assert outs[0].losses.keys() == {"size"} and outs[0].records == {}


def test_clipping_bounds_the_norm_and_reports_what_it_was(stand_in: Any, count_task: Any) -> None:
    free, expected = gradients(stand_in, count_task, 1)
    norm = math.sqrt(sum(float(g.square().sum()) for g in expected))
    assert free["grad_norm"] == pytest.approx(norm)
    for clip in (norm / 2, norm * 2):
        terms, found = gradients(stand_in, count_task, 1, clip=clip)
        assert terms["grad_norm"] == pytest.approx(norm)
        for one, two in zip(found, expected, strict=True):
            assert torch.allclose(one, two * min(1, clip / norm), rtol=1e-5)


def test_a_zero_gradient_is_not_clipped_to_nan(stand_in: Any, count_task: Any) -> None:
    for clip in (None, 1.0):
        model = stand_in(coupled=False)
        step = stepper(model, count_task, clip=clip)
        for parameter in model.parameters():
            parameter.register_hook(torch.zeros_like)
        batch = count_task.batch(0, 2)
        step.add(batch, batch, 0)
        assert step.finish()["grad_norm"] == 0
        assert all(p.grad.isfinite().all() for p in model.parameters())


def test_a_step_without_targets_has_no_loss(stand_in: Any, count_task: Any) -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    batch = Batch(torch.tensor([1, 2]), [2], empty, empty)
    step = stepper(stand_in(coupled=False), count_task)
    step.add(batch, batch, 0)
    assert step.finish()["loss"] == 0


def test_bf16_runs_the_forward_pass_alone_under_autocast(stand_in: Any, count_task: Any) -> None:
    model, seen = stand_in(coupled=False), []
    model.head.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    batch = count_task.batch(0, 8)
    for precision, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        step = stepper(model, count_task, precision=precision)
        logits = step.forward(batch)
        assert seen.pop() == dtype and logits.dtype == torch.float32
        step.add(batch, batch, 0)
        assert math.isfinite(step.finish()["loss"])
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    double = stand_in(torch.float64, coupled=False)
    assert stepper(double, count_task).forward(batch).dtype == torch.float64


def test_a_snapshot_puts_back_buffers_state_and_generators(stand_in: Any, count_task: Any) -> None:
    model = stand_in()
    torch.manual_seed(0)
    before = {name: str(value) for name, value in model.state_dict().items()}
    state, snapshot = torch.get_rng_state(), Snapshot(model, CPU)
    batch = count_task.batch(0, 8)
    stepper(model, count_task).add(batch, batch, 0)
    Unchanged().restore()
    after = {name: str(value) for name, value in model.state_dict().items()}
    changed = {name for name in before if before[name] != after[name]}
    assert changed >= {"norm.running_mean", "norm.num_batches_tracked", "_extra_state"}
    assert not torch.equal(torch.get_rng_state(), state)
    snapshot.restore()
    assert {name: str(value) for name, value in model.state_dict().items()} == before
    assert torch.equal(torch.get_rng_state(), state)
