"""Partial RMSNorm has every property that encoderkit asks of a norm."""

from __future__ import annotations

from encoderkit.testing import conformance

TestConformance = conformance("norm=prmsnorm", "norm.share=0.25")
