"""One run that a plan asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run that a plan asks for: plain data, so that it travels to any process.

    `flops` for each token of a forward pass through the stack, at 128 tokens; None is unknown.
    `against` says how its variant stands to the baseline.
    """

    id: str
    slug: str
    label: str
    overrides: tuple[str, ...]
    seed: int
    tree: dict[str, Any]
    parameters: int
    flops: float | None = None
    against: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, dict[str, str]]
    data_hash: str
    task: dict[str, Any]
    reproduce: str
    git: dict[str, Any] | None

    @property
    def name(self) -> str:
        """The name of the cell's directory."""
        return f"{self.slug}-{self.id}"
