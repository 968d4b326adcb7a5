"""The task of brackets has every property that encoderkit asks of a task."""

from __future__ import annotations

from encoderkit.testing import conformance

TestConformance = conformance("task=brackets", "task.pairs=5", "task.eval_sequences=70")
