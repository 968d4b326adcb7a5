"""Dynamic Tanh has every property that encoderkit asks of a norm."""

from __future__ import annotations

from encoderkit.testing import conformance

TestConformance = conformance("norm=dyt", "norm.alpha=0.7")
