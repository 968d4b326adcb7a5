"""The training loop: every run ends in one of a few named states, and can be taken up again."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from encoderkit.config.schema import RunOptions, TrainOptions
from encoderkit.data import Task
from encoderkit.nn.init import key
from encoderkit.train.checkpoint import Checkpoint, of_this_model, restore, sorted_out
from encoderkit.train.device import (
    environment,
    pick_device,
    random_state,
    set_random_state,
    settings,
)
from encoderkit.train.evaluate import evaluate
from encoderkit.train.keep import DirectoryKeeper, Keeper
from encoderkit.train.ledger import Ledger
from encoderkit.train.optim import decay_groups, optimizer, rate
from encoderkit.train.step import Snapshot, Stepper, Unchanged
from encoderkit.train.verdict import Loss, rise, stall


class Watch:
    """Sees a run go by, and may stop it; this one does neither."""

    def stop(self) -> str:
        """Return why the run should stop now, or nothing; asked between (micro-)batches."""
        return ""

    def started(self, step: int) -> None:
        """Take note of where the run starts: at step 0, or behind its checkpoint."""

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Take note of a finished step, counted from 1, with its training loss."""


@dataclass(slots=True)
class Outcome:
    """How a run ended.

    `state` is ok, stalled, spiked, nonfinite or interrupted, and `reason` says why in words;
    `metrics` are those of the last evaluation, and the losses of parts, part/NAME, in the training
    step before it; `tokens` and `seconds` are of training, over all sittings; `ran` names the parts
    that ran in "train" and in "eval", by their path.
    """

    state: str
    reason: str
    step: int
    metrics: dict[str, float]
    tokens: int
    seconds: float
    groups: dict[str, list[str]]
    notes: list[str]
    ran: dict[str, list[str]] = field(default_factory=dict)


@dataclass(slots=True)
class Progress:
    """How far a run is; `evaluated` is false while the evaluation of its last step is due.

    `ran` is kept with the checkpoint, so that a run that was stopped after its last step knows.
    """

    step: int = 0
    evaluated: bool = True
    tokens: int = 0
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)  # their losses in the last step
    ran: dict[str, list[str]] = field(default_factory=dict)
    best: float | None = None  # the least validation loss so far
    best_step: int = 0


class Ended(Exception):
    """Leaves the loop with a state and a reason."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(state, reason)
        self.state, self.reason = state, reason


def fit(
    model: nn.Module,
    task: Task,
    options: TrainOptions,
    run: RunOptions,
    directory: Path | None,
    *,
    identity: str = "",
    watch: Watch | None = None,
) -> Outcome:
    """Train a model on a task, and go on where an earlier call in the same directory ended.

    A checkpoint of another identity, or made in another environment, is not taken up: the run then
    starts anew and says so in the outcome's notes.
    Errors: CheckpointError, StoreError, and ConfigError for a device that is not there.
    """
    device = pick_device(run.device)
    keeper = DirectoryKeeper(directory) if directory else Keeper()
    with settings(run.threads, device):
        model.to(device).train()
        loop = Loop(model, task, options, run, keeper, watch or Watch())
        loop.resume({"identity": identity, "environment": environment(run)})
        try:
            return loop.run_to_end()
        finally:
            keeper.close()


class Loop:
    """One run, from its checkpoint or its start to a named end."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        options: TrainOptions,
        run: RunOptions,
        keeper: Keeper,
        watch: Watch,
    ) -> None:
        self.model, self.task, self.options, self.run = model, task, options, run
        self.keeper, self.watch = keeper, watch
        self.device = pick_device(run.device)
        self.optimizer = optimizer(model, options)
        self.stepper = Stepper(model, task, options, self.device)
        self.at = Progress()
        self.ledger = Ledger(model, self.at.ran)
        self.saved: tuple[int, bool] | None = None
        self.about: dict[str, Any] = {}
        self.notes: list[str] = []

    def resume(self, about: dict[str, Any]) -> None:
        """Take up the checkpoint that fits `about`, or start from step 0."""
        self.about = about
        found = self.keeper.load()
        with of_this_model():
            if found and (differs := _differs(found.about, about)):
                step = found.about["progress"]["step"]
                self.notes.append(
                    f"restarted from step 0: the checkpoint at step {step} is of {differs}"
                )
                found = None
            if found:
                self._restore(found)
        if found is None:
            torch.manual_seed(key(self.task.seed, "train"))
        self.keeper.begin(found)
        self.watch.started(self.at.step)

    def run_to_end(self) -> Outcome:
        """Step, evaluate and save until the budget is spent or something ends the run."""
        began, tokens = self.at.seconds, self.at.tokens
        try:
            self._evaluate_if_due()
            while self.at.step < self.options.steps:
                loss = self._step()
                rate_ = (self.at.tokens - tokens) / (self.at.seconds - began)
                self.watch.progress(self.at.step, loss, rate_)
                self._evaluate_if_due()
                self._save_if_due()
            state, reason = self._verdict()
        except Ended as end:
            state, reason = end.state, end.reason
        if state != "nonfinite":
            self._save()
        if self.run.keep == "none" and state != "interrupted":
            self.keeper.drop()
        self.keeper.flush()
        at, groups = self.at, decay_groups(self.model)
        return Outcome(
            state, reason, at.step, at.metrics, at.tokens, at.seconds, groups, self.notes, at.ran
        )

    def _step(self) -> float:
        began = time.perf_counter()
        step = self.at.step
        batch = self.task.batch(step, self.options.batch)
        micro = batch.split(self.options.accumulate)
        before = Snapshot(self.model, self.device) if len(micro) > 1 else Unchanged()
        self.optimizer.zero_grad()
        try:
            with self.ledger.watching("train"):
                for i, part in enumerate(micro):
                    self._poll()
                    self.stepper.add(part, batch, step * self.options.accumulate + i)
        except Ended:
            before.restore()
            raise
        terms = self.stepper.finish()
        for name, value in terms.items():
            self.keeper.log(step + 1, f"train/{name}", value)
        for name, value in terms.items():
            self._require_finite(value, f"train/{name}", step + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.options, step)
        self.optimizer.step()
        self.at.step, self.at.evaluated = step + 1, False
        self.at.parts = {n: value for n, value in terms.items() if n.startswith("part/")}
        self.at.tokens += sum(batch.lengths)
        self.at.seconds += time.perf_counter() - began
        return terms["loss"]

    def _evaluate_if_due(self) -> None:
        step, every = self.at.step, self.options.eval_every
        due = step == self.options.steps or (every > 0 and step % every == 0)
        if not due or self.at.evaluated:
            return
        before = Snapshot(self.model, self.device)
        try:
            with self.ledger.watching("eval"):
                forward = self.stepper.forward
                metrics = evaluate(self.model, self.task, forward, self.device, self._poll)
        except Ended:
            before.restore()
            raise
        for name, value in metrics.items():
            self.keeper.log(step, f"val/{name}", value)
        for name, value in metrics.items():
            self._require_finite(value, f"val/{name}", step)
        self.at.metrics, self.at.evaluated = metrics | self.at.parts, True
        if self.at.best is None or metrics["loss"] < self.at.best:
            self.at.best, self.at.best_step = metrics["loss"], step
            if self.run.keep == "best":
                self.keeper.copy("best", *self._content())
        elif (words := self._rise()) and words not in self.notes:
            self.notes.append(words)
        self.keeper.flush()

    def _rise(self) -> str:
        """Return in words that the validation loss has risen far above its best, if it has."""
        if self.at.best is None:
            return ""
        best = Loss(self.at.best_step, self.at.best)
        return rise(Loss(self.at.step, self.at.metrics["loss"]), best, self.task.trivial_loss)

    def _verdict(self) -> tuple[str, str]:
        now = Loss(self.at.step, self.at.metrics["loss"])
        if self.options.judge_stall and (words := self._rise()):
            return "spiked", words
        if self.options.judge_stall and (words := stall(now, self.task.trivial_loss)):
            return "stalled", words
        return "ok", ""

    def _poll(self) -> None:
        if reason := self.watch.stop():
            raise Ended("interrupted", reason)

    def _require_finite(self, value: float, what: str, step: int) -> None:
        if not math.isfinite(value):
            raise Ended("nonfinite", f"{what} became {value} at step {step}")

    def _save_if_due(self) -> None:
        every = self.run.checkpoint_every
        if every > 0 and self.at.step % every == 0:
            self._save()

    def _save(self) -> None:
        if self.saved == (self.at.step, self.at.evaluated):
            return
        content = self._content()
        if self.run.keep == "all":  # first: a run goes on behind the other one
            self.keeper.copy(str(self.at.step), *content)
        self.keeper.save(*content)
        self.saved = (self.at.step, self.at.evaluated)

    def _content(self) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
        """Return what a checkpoint holds: weights, state, and how far the run is."""
        weights, extra = sorted_out(self.model)
        state = {
            "optimizer": self.optimizer.state_dict(),
            "random": random_state(self.device),
            "extra": extra,
        }
        return weights, state, self.about | {"progress": asdict(self.at)}

    def _restore(self, found: Checkpoint) -> None:
        restore(self.model, found)
        self.optimizer.load_state_dict(found.state["optimizer"])
        set_random_state(found.state["random"], self.device)
        self.at = Progress(**found.about["progress"])
        self.ledger.ran = self.at.ran
        self.saved = (self.at.step, self.at.evaluated)


def _differs(found: dict[str, Any], now: dict[str, Any]) -> str:
    """Return in words what a checkpoint is of that this run is not, or nothing."""
    if found["identity"] != now["identity"]:
        return f"run {found['identity'] or '(unnamed)'}, not {now['identity'] or '(unnamed)'}"
    pairs = (
        (name, found["environment"].get(name), now["environment"][name])
        for name in now["environment"]
    )
    return ", ".join(f"{name} {old}, now {new}" for name, old, new in pairs if old != new)
