from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from encoderkit.config.check import check
from encoderkit.config.schema import RunOptions
from encoderkit.data import build_task
from encoderkit.errors import CheckpointError, ConfigError
from encoderkit.nn.build import build_model
from encoderkit.plugins import registry
from encoderkit.train import checkpoint, environment, fit, loop, pick_device
from encoderkit.train.metrics import read_metrics

Trained = Callable[..., tuple[Any, Any]]


def digest(tensor: torch.Tensor) -> str:
    data = tensor.contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()


def everything(directory: Path) -> dict[str, Any]:
    """Return all that must not depend on where a run was stopped."""
    kept = checkpoint.load(directory / "checkpoint")
    assert kept is not None
    state = kept.state["optimizer"]
    tensors = {f"weight {name}": t for name, t in kept.weights.items()}
    for number, values in state["state"].items():
        tensors |= {f"adam {number} {name}": t for name, t in values.items()}
    tensors |= {f"random {name}": t for name, t in kept.state["random"].items()}
    found: dict[str, Any] = {name: digest(t) for name, t in tensors.items()}
    found["metrics"] = (directory / "metrics.jsonl").read_bytes()
    found["groups"] = state["param_groups"]
    found["extra"] = kept.state["extra"]
    found["progress"] = {**kept.about["progress"], "seconds": None}
    found["weights file"] = (directory / "checkpoint" / "weights.safetensors").read_bytes()
    return found


def test_a_run_learns_and_ends_ok(trained: Trained, tmp_path: Path) -> None:
    model, outcome = trained(tmp_path, steps=60, run={"checkpoint_every": 0})
    assert (outcome.state, outcome.reason, outcome.step) == ("ok", "", 60)
    losses = [m.value for m in read_metrics(tmp_path / "metrics.jsonl") if m.name == "train/loss"]
    assert len(losses) == 60 and losses[-1] < 0.5 * losses[0]
    assert outcome.metrics.keys() == {"loss", "accuracy", "part/size"}
    assert outcome.metrics["accuracy"] > 0.9
    assert outcome.tokens > 60 * 6 and outcome.seconds > 0 and outcome.notes == []
    assert outcome.groups == {
        "decay": ["head.weight"],
        "no_decay": ["embed.weight", "norm.weight", "norm.bias", "head.bias"],
    }
    assert model.training


def test_every_step_and_evaluation_is_logged_once(trained: Trained, tmp_path: Path) -> None:
    trained(tmp_path)
    found: dict[str, list[int]] = {}
    for metric in read_metrics(tmp_path / "metrics.jsonl"):
        found.setdefault(metric.name, []).append(metric.step)
    steps, evaluations = [1, 2, 3, 4, 5, 6, 7], [3, 6, 7]
    assert found == {
        "train/loss": steps,
        "train/part/size": steps,
        "train/grad_norm": steps,
        "val/loss": evaluations,
        "val/accuracy": evaluations,
    }


def test_a_run_without_a_directory_keeps_nothing(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, kept = trained(tmp_path / "kept")
    _, outcome = trained(None)
    assert dataclasses.replace(outcome, seconds=0) == dataclasses.replace(kept, seconds=0)
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_the_callers_random_state_and_threads_are_left_alone(trained: Trained) -> None:
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    one, _ = trained(None)
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads
    torch.manual_seed(6)
    two, _ = trained(None)
    for name, value in one.state_dict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, two.state_dict()[name]), name


@pytest.fixture(scope="module")
def whole(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what an undisturbed run in three micro-batches leaves."""
    directory = tmp_path_factory.mktemp("whole")
    trained(directory, accumulate=3)
    return everything(directory)


# 7 steps of 3 micro-batches and 3 evaluations of 3 batches: 30 questions. Of the 20 rows a step
# takes 6, so that two epochs end within a step.
@pytest.mark.hazard("huggingface/accelerate#2016", "huggingface/transformers#39215")
@pytest.mark.parametrize("asked", range(1, 31))
def test_a_run_stopped_anywhere_ends_like_an_undisturbed_one(
    trained: Trained, stop_at: Any, whole: Any, tmp_path: Path, asked: int
) -> None:
    _, first = trained(tmp_path, stop_at(asked=asked), accumulate=3)
    assert (first.state, first.reason) == ("interrupted", "asked to")
    _, second = trained(tmp_path, accumulate=3)
    assert second.state == "ok" and second.notes == []
    assert everything(tmp_path) == whole


def test_a_run_that_nobody_stops_is_asked_thirty_times(trained: Trained, stop_at: Any) -> None:
    watch = stop_at()
    trained(None, watch, accumulate=3)
    assert watch.count == 30


def test_a_run_stopped_again_and_again_ends_like_an_undisturbed_one(
    trained: Trained, stop_at: Any, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    _, outcome = trained(whole)
    sittings = 0
    while True:
        _, again = trained(parts, stop_at(asked=4))
        sittings += 1
        if again.state == "ok":
            break
    assert sittings > 4
    assert everything(parts) == everything(whole)
    assert dataclasses.replace(again, seconds=0) == dataclasses.replace(outcome, seconds=0)


@pytest.mark.parametrize("step", [1, 2, 6])
def test_stopping_after_a_step_keeps_that_step(
    trained: Trained, stop_at: Any, tmp_path: Path, step: int
) -> None:
    _, outcome = trained(tmp_path, stop_at(step=step))
    assert (outcome.state, outcome.step) == ("interrupted", step)
    kept = checkpoint.load(tmp_path / "checkpoint")
    assert kept is not None and kept.about["progress"]["step"] == step


def test_a_killed_run_goes_on_from_its_last_checkpoint(
    trained: Trained, tmp_path: Path, stop_at: Any
) -> None:
    class Killed(BaseException):
        pass

    class Kill(stop_at):  # type: ignore[misc]
        def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
            if step == 6:
                raise Killed

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    trained(whole)
    with pytest.raises(Killed):
        trained(parts, Kill())
    kept = checkpoint.load(parts / "checkpoint")
    assert kept is not None and kept.about["progress"]["step"] == 4
    trained(parts)
    assert everything(parts) == everything(whole)


def test_a_finished_run_is_not_repeated(trained: Trained, stop_at: Any, tmp_path: Path) -> None:
    _, first = trained(tmp_path)
    before, made = everything(tmp_path), (tmp_path / "checkpoint").stat()
    watch = stop_at()
    _, second = trained(tmp_path, watch)
    assert watch.count == 0 and second == first and everything(tmp_path) == before
    assert (tmp_path / "checkpoint").stat() == made


def test_no_checkpoints_but_the_last(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    save = checkpoint.save

    def note(directory: Path, kept: checkpoint.Checkpoint) -> None:
        steps.append(kept.about["progress"]["step"])
        save(directory, kept)

    monkeypatch.setattr(checkpoint, "save", note)
    trained(tmp_path / "a", run={"checkpoint_every": 0})
    trained(tmp_path / "b", run={"checkpoint_every": 3})
    trained(tmp_path / "c", run={"checkpoint_every": 7})
    assert steps == [7, 3, 6, 7, 7]


@pytest.mark.hazard("pytorch/pytorch#94575")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler looks there
@pytest.mark.parametrize("whole_model", [True, False], ids=["whole", "a module in it"])
def test_a_compiled_model_saves_the_same_keys_and_loads_both_ways(
    trained: Trained, stand_in: Any, stop_at: Any, tmp_path: Path, whole_model: bool
) -> None:
    def compiled() -> Any:
        model = stand_in()
        if whole_model:
            return torch.compile(model, backend="eager")
        model.head = torch.compile(model.head, backend="eager", dynamic=True)
        return model

    trained(tmp_path / "whole")
    for name, first, second in (
        ("compiled first", compiled(), stand_in()),
        ("eager first", stand_in(), compiled()),
    ):
        place = tmp_path / name
        _, stopped = trained(place, stop_at(step=4), model=first)
        assert stopped.state == "interrupted"
        assert trained(place, model=second)[1].state == "ok"
        assert everything(place) == everything(tmp_path / "whole")


def test_another_identity_starts_anew(trained: Trained, tmp_path: Path) -> None:
    trained(tmp_path / "whole", identity="b")
    trained(tmp_path / "parts", identity="a", steps=3)
    _, outcome = trained(tmp_path / "parts", identity="b")
    assert outcome.notes == ["restarted from step 0: the checkpoint at step 3 is of run a, not b"]
    again, whole = everything(tmp_path / "parts"), everything(tmp_path / "whole")
    assert again == whole


@pytest.mark.parametrize(
    ("name", "value"), [("torch", "0.1"), ("threads", 2), ("device", "cuda, X")]
)
def test_another_environment_starts_anew(
    trained: Trained,
    stop_at: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: Any,
) -> None:
    now = environment(RunOptions(device="cpu"))
    with monkeypatch.context() as patch:
        patch.setattr(loop, "environment", lambda run: now | {name: value})
        trained(tmp_path / "parts", stop_at(asked=6))
    _, outcome = trained(tmp_path / "parts")
    trained(tmp_path / "whole")
    words = f"the checkpoint at step 3 is of {name} {value}, now {now[name]}"
    assert outcome.notes == [f"restarted from step 0: {words}"]
    assert everything(tmp_path / "parts") == everything(tmp_path / "whole")


def test_a_checkpoint_of_another_model_is_refused(
    trained: Trained, stand_in: Any, tmp_path: Path
) -> None:
    trained(tmp_path)
    with pytest.raises(CheckpointError, match="is of another model: .*running_mean"):
        trained(tmp_path, model=stand_in(coupled=False))


def poisoned(stand_in: Any, bad: float) -> Any:
    model = stand_in()
    model.poison = bad
    return model


@pytest.mark.hazard("own: a bad batch poisons running statistics")
@pytest.mark.parametrize(("precision", "bad"), [("fp32", math.nan), ("bf16", math.inf)])
def test_a_loss_that_turns_nan_ends_the_run_in_words(
    trained: Trained, stand_in: Any, tmp_path: Path, precision: str, bad: float
) -> None:
    model = poisoned(stand_in, bad)
    _, outcome = trained(tmp_path, model=model, precision=precision)
    assert (outcome.state, outcome.step) == ("nonfinite", 2)
    assert outcome.reason == "train/loss became nan at step 3"
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert '{"step": 3, "name": "train/loss", "value": null}' in lines
    assert [json.loads(line)["step"] for line in lines][-1] == 3
    assert all(p.isfinite().all() for p in model.parameters())
    kept = checkpoint.load(tmp_path / "checkpoint")
    assert kept is not None and kept.about["progress"]["step"] == 2
    # What the bad step left in the model is not kept.
    trained(tmp_path / "b", model=poisoned(stand_in, bad), run={"checkpoint_every": 0})
    assert checkpoint.load(tmp_path / "b" / "checkpoint") is None


def test_a_gradient_that_turns_infinite_ends_the_run_in_words(
    trained: Trained, stand_in: Any
) -> None:
    model = stand_in()
    model.head.weight.register_hook(lambda g: g * math.inf if len(model.steps) > 3 else g)
    _, outcome = trained(None, model=model, eval_every=0)
    assert outcome.state == "nonfinite"
    assert outcome.reason.startswith("train/grad_norm became ")
    assert outcome.reason.endswith(" at step 4") and outcome.metrics == {}


def test_a_validation_that_turns_nan_ends_the_run_in_words(
    trained: Trained, stand_in: Any, tmp_path: Path
) -> None:
    model = stand_in()
    logits = model.logits
    model.logits = lambda *a, **k: logits(*a, **k) + (0.0 if model.training else math.nan)
    _, outcome = trained(tmp_path, model=model)
    assert (outcome.state, outcome.reason) == ("nonfinite", "val/loss became nan at step 3")
    assert '"val/loss", "value": null' in (tmp_path / "metrics.jsonl").read_text()


def test_a_run_near_the_trivial_loss_is_stalled_when_asked(trained: Trained) -> None:
    _, judged = trained(None, lr=1e-9, judge_stall=True)
    for ratio, state in ((0.949, "ok"), (0.951, "stalled"), (1.1, "stalled")):
        trivial = judged.metrics["loss"] / ratio
        assert trained(None, lr=1e-9, judge_stall=True, trivial=trivial)[1].state == state
    _, spared = trained(None, lr=1e-9, judge_stall=False)
    _, learnt = trained(None, steps=60, judge_stall=True)
    assert judged.state == "stalled" and spared.state == learnt.state == "ok"
    loss = judged.metrics["loss"]
    assert judged.reason == (
        f"the validation loss {loss:.4g} is no better than 0.95 of the trivial loss 1.6"
    )


def test_metrics_that_were_cut_behind_the_checkpoint_are_refused(
    trained: Trained, tmp_path: Path
) -> None:
    trained(tmp_path)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="metrics.jsonl has .* bytes"):
        trained(tmp_path)


def test_dropout_is_keyed_by_the_micro_batch(trained: Trained, stand_in: Any) -> None:
    model = stand_in()
    trained(None, model=model, steps=2, accumulate=3, eval_every=0)
    assert model.steps == [0, 1, 2, 3, 4, 5, None, None, None]


def test_a_device_that_is_not_there_is_refused(trained: Trained) -> None:
    if torch.cuda.is_available():
        pytest.skip("asks for CUDA where there is none, and here is one")
    with pytest.raises(ConfigError, match="^run.device=cuda: .* Try run.device=auto.$"):
        trained(None, run={"device": "cuda"})
    assert pick_device("auto").type == "cpu"


TREE = {
    "model": {"d_model": 16, "n_layers": 2, "n_heads": 2},
    "norm": {"part": "batchnorm"},
    "placement": {"part": "pre"},
    "ffn": {"part": "glu", "dropout": 0.1},
    "attention": {"part": "sdpa", "dropout": 0.1},
    "position": {"part": "learned", "max_len": 24},
    "init": {"part": "xavier"},
    "task": {"part": "sort", "eval_sequences": 100},
    "train": {"steps": 4, "batch": 6, "accumulate": 2, "warmup": 1, "eval_every": 2},
    "run": {"device": "cpu", "checkpoint_every": 2},
}


@pytest.mark.hazard("huggingface/transformers#39215")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_real_encoder_stopped_and_resumed_is_bit_equal(
    stop_at: Any, tmp_path: Path, precision: str
) -> None:
    config = check({**TREE, "train": {**TREE["train"], "precision": precision}}, registry())

    def sit(name: str, watch: Any = None) -> Any:
        task = build_task(config)
        model = build_model(config, task.vocab, task.outputs)
        return fit(model, task, config.train, config.run, tmp_path / name, watch=watch)

    assert sit("whole").state in ("ok", "stalled")
    for asked in (2, 3, 5, 6):  # within step 1, after it, in the evaluation, after it
        name = str(asked)
        assert sit(name, stop_at(asked=asked)).state == "interrupted"
        assert sit(name).state in ("ok", "stalled")
        assert everything(tmp_path / name) == everything(tmp_path / "whole")


@pytest.mark.parametrize(
    ("losses", "state"),
    [([1.0, 0.5, 0.81], "ok"), ([1.0, 0.5, 0.83], "spiked"), ([1.0, 1.4, 0.9], "ok")],
)
def test_a_run_that_ends_far_above_its_best_is_spiked(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, losses: list[float], state: str
) -> None:
    """The trivial loss is 1.6, so a rise by more than .32 is too much."""
    found = iter(losses)
    monkeypatch.setattr(loop, "evaluate", lambda *_: {"loss": next(found)})
    _, outcome = trained(steps=3, eval_every=1, judge_stall=True)
    assert outcome.state == state
    if state == "spiked":
        assert outcome.reason == (
            "the validation loss rose from 0.5 at step 2 to 0.83 at step 3, by more than 0.2 of "
            "the trivial loss"
        )
    risen = losses[1] - losses[0] > 0.32 or state == "spiked"
    assert [note.startswith("the validation loss rose") for note in outcome.notes] == [True] * risen


def test_the_best_checkpoint_is_kept_beside_the_last(trained: Trained, tmp_path: Path) -> None:
    _, outcome = trained(tmp_path, steps=6, eval_every=2, run={"keep": "best"})
    losses = {
        v.step: v.value for v in read_metrics(tmp_path / "metrics.jsonl") if v.name == "val/loss"
    }
    best = checkpoint.load(tmp_path / "checkpoint-best")
    assert best is not None
    assert best.about["progress"]["step"] == min(losses, key=lambda step: losses[step])
    assert checkpoint.load(tmp_path / "checkpoint") is not None
    assert outcome.state == "ok"


@pytest.mark.hazard("Lightning-AI/pytorch-lightning#2636")
@pytest.mark.parametrize("bad", [0, 2], ids=["first", "last"])
def test_a_nan_is_never_the_best(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    losses = [1.0, 0.5, 0.7]
    losses[bad] = math.nan
    found = iter(losses)
    monkeypatch.setattr(loop, "evaluate", lambda *_: {"loss": next(found)})
    _, outcome = trained(tmp_path, steps=3, eval_every=1, run={"keep": "best"})
    assert outcome.state == "nonfinite"
    assert outcome.reason == f"val/loss became nan at step {bad + 1}"
    best = checkpoint.load(tmp_path / "checkpoint-best")
    assert (best and best.about["progress"]["best"]) == (None if bad == 0 else 0.5)


def test_all_checkpoints_are_kept(trained: Trained, tmp_path: Path) -> None:
    trained(tmp_path, steps=7, run={"keep": "all", "checkpoint_every": 3})
    names = sorted(path.name for path in tmp_path.glob("checkpoint*"))
    assert names == ["checkpoint", "checkpoint-3", "checkpoint-6", "checkpoint-7"]
    third = checkpoint.load(tmp_path / "checkpoint-3")
    assert third is not None and third.about["progress"]["step"] == 3


@pytest.mark.hazard("Lightning-AI/pytorch-lightning#688")
@pytest.mark.parametrize("keep", ["all", "best"])
def test_a_run_killed_between_two_checkpoints_keeps_all_that_was_asked_for(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str
) -> None:
    class Killed(BaseException):
        pass

    real, left = checkpoint.save, [1000]

    def save(*given: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        real(*given)

    def kept(place: Path) -> dict[str, bytes]:
        paths = place.glob("checkpoint*/weights.safetensors")
        return {path.parent.name: path.read_bytes() for path in paths}

    monkeypatch.setattr(checkpoint, "save", save)
    run = {"keep": keep, "checkpoint_every": 3}
    trained(tmp_path / "whole", run=run)
    saves = 1000 - left[0]
    assert saves >= 4
    for n in range(saves):
        left[0] = n
        with pytest.raises(Killed):
            trained(tmp_path / str(n), run=run)
        left[0] = 1000
        trained(tmp_path / str(n), run=run)
        assert kept(tmp_path / str(n)) == kept(tmp_path / "whole"), n


def test_no_checkpoint_is_kept_of_a_run_that_is_done(
    trained: Trained, stop_at: Any, tmp_path: Path
) -> None:
    _, stopped = trained(tmp_path, stop_at(step=4), run={"keep": "none"})
    assert stopped.state == "interrupted" and (tmp_path / "checkpoint").exists()
    model, outcome = trained(tmp_path, run={"keep": "none"})
    assert outcome.state == "ok" and not (tmp_path / "checkpoint").exists()
    whole, _ = trained(tmp_path / "other")
    for name, value in whole.state_dict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, model.state_dict()[name])
