"""The best finished run of each task, and how fast runs went: what a watcher wants to know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from encoderkit.sweep import record
from encoderkit.sweep.record import Record


@dataclass(frozen=True, slots=True)
class Best:
    """The best finished run on one task and its data, by the task's metric."""

    task: str
    metric: str
    value: float
    label: str
    seed: int | None

    def __str__(self) -> str:
        return f"best {self.task} {self.metric} {self.value:.4f}: {self.label} seed={self.seed}"


class Standing:
    """The best runs among the records that were added, and the mean of their tokens a second."""

    def __init__(self, found: Iterable[Record] = ()) -> None:
        self._best: dict[tuple[str, ...], Best] = {}
        self._speeds: list[float] = []
        for each in found:
            self.add(each)

    def add(self, found: Record) -> bool:
        """Take note of an ended run, and tell whether it is the best of its task so far.

        A number that is not finite is null, and never best.
        """
        if found.state not in record.COUNTED:
            return False
        if (speed := found.tokens_per_second) is not None:
            self._speeds.append(speed)
        task, metric = found.task_name, str(found.task.get("metric"))
        value = found.metrics.get(metric)
        if value is None:
            return False
        key = (task, found.data_hash, metric)
        lower = found.task.get("lower_is_better", True)
        before = self._best.get(key)
        if before and not (value < before.value if lower else value > before.value):
            return False
        self._best[key] = Best(task, metric, value, found.label, found.seeds.get("seed"))
        return True

    @property
    def best(self) -> tuple[Best, ...]:
        """The best run of each task."""
        return tuple(self._best.values())

    @property
    def tokens_per_second(self) -> float | None:
        """Of one run, while it trains; None until one has ended."""
        return sum(self._speeds) / len(self._speeds) if self._speeds else None
