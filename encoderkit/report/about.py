"""What the records of a comparison have in common: the task, the budget, what is fixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from encoderkit.sweep import axes
from encoderkit.sweep.record import Record


@dataclass(frozen=True, slots=True)
class About:
    """What was trained; what the records do not agree on is empty or null.

    `fixed` are the overrides that all records share and that are no axes; `some` those that only
    some variants have, as an optional key or a matched width, and which. The trivial loss and the
    baselines are losses in nats.
    """

    task: str
    steps: int | None
    batch: int | None
    seeds: list[int]
    fixed: list[str]
    some: dict[str, list[str]]
    metric: str
    lower_is_better: bool | None
    trivial_loss: float | None
    baselines: dict[str, float]

    def lines(self) -> list[str]:
        """Return the facts in words: the task's line, what is fixed, and what only some have."""
        better = {True: "lower", False: "higher", None: ""}[self.lower_is_better]
        budget = (
            f"{self.steps} steps of {self.batch} sequences" if self.steps and self.batch else ""
        )
        known = ", ".join(f"{name} {value:.4f}" for name, value in self.baselines.items())
        trivial = "" if self.trivial_loss is None else f"trivial {self.trivial_loss:.4f}"
        scale = "; ".join(text for text in (trivial, known) if text)
        judged = f"{better} {self.metric} is better" if better and self.metric else ""
        judged += (f" ({scale})" if self.metric == "loss" else f" (losses: {scale})") * bool(scale)
        trained = ", ".join(text for text in (budget, _seeds(self.seeds)) if text)
        words = "; ".join(text for text in (trained, judged.strip()) if text)
        line = ": ".join(text for text in (self.task, words) if text)
        some = "; ".join(f"{text} ({axes.some(labels, 3)})" for text, labels in self.some.items())
        fixed = [f"fixed: {' '.join(self.fixed)}"] * bool(self.fixed)
        return [line, *fixed, *([f"for some only: {some}"] * bool(some))]


def about(records: Sequence[Record], varied: Sequence[str]) -> About:
    """Return what records have in common; `varied` are the keys of the axes."""

    def shared(read: Callable[[Record], Any], kind: Any) -> Any:
        first, *others = [read(each) for each in records]
        alike = isinstance(first, kind) and all(other == first for other in others)
        return first if alike else None

    having: dict[str, list[Record]] = {}
    for each in records:
        for text in axes.without_runner(each.overrides):
            if axes.key(text) not in varied:
                having.setdefault(text, []).append(each)
    common = [text for text, found in having.items() if len(found) == len(records)]
    some = {
        text: list(dict.fromkeys(each.label for each in found))
        for text, found in having.items()
        if text not in common and any(f" {text} " not in f" {each.label} " for each in found)
    }
    baselines = shared(lambda each: each.task.get("baselines"), dict) or {}
    return About(
        task=shared(lambda each: each.task_name, str) or "",
        steps=shared(lambda each: each.budget.get("steps"), int),
        batch=shared(lambda each: each.budget.get("batch"), int),
        seeds=sorted({each.seeds["seed"] for each in records}),
        fixed=common,
        some=some,
        metric=shared(lambda each: each.task.get("metric"), str) or "",
        lower_is_better=shared(lambda each: each.task.get("lower_is_better"), bool),
        trivial_loss=shared(lambda each: each.task.get("trivial_loss"), int | float),
        baselines={k: v for k, v in baselines.items() if isinstance(v, int | float)},
    )


def _seeds(seeds: Sequence[int]) -> str:
    """Return seeds in words, a run of three or more as its ends."""
    if len(seeds) < 2:
        return f"seed {seeds[0]}" if seeds else ""
    whole = len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1
    listed = f"{seeds[0]}-{seeds[-1]}" if whole else ", ".join(map(str, seeds))
    return f"seeds {listed}"
