"""All properties, by what they look at; importing this package fills `examine.PROPERTIES`."""

from __future__ import annotations

from encoderkit.testing.properties import (
    batch,
    calling,
    dense,
    draws,
    inits,
    modes,
    numbers,
    options,
    places,
    serves,
    stacks,
    state,
    tasks,
    traces,
)

__all__ = [
    "batch",
    "calling",
    "dense",
    "draws",
    "inits",
    "modes",
    "numbers",
    "options",
    "places",
    "serves",
    "stacks",
    "state",
    "tasks",
    "traces",
]
