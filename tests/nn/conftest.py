"""A part that somebody else wrote, made for one test."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from encoderkit.api import Options, Part, Traits
from encoderkit.config.request import configure
from encoderkit.config.schema import Chosen, Config
from encoderkit.registry import Entry, Owner

Stranger = Callable[..., Config]


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Stranger:
    """Return a function that puts a class in the place of one kind of part in a request."""
    module = types.ModuleType("a_strangers_module")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def put(kind: Any, cls: object, *request: str, traits: Traits | None = None) -> Config:
        monkeypatch.setattr(module, "Mine", cls, raising=False)
        target = f"{module.__name__}:Mine"
        part = Part(kind, "mine", target, "a stranger's", traits=traits or Traits())
        chosen = Chosen(Entry(part, Owner("strange-parts", "1.2")), Options())
        return dataclasses.replace(configure(*request), **{kind: chosen})

    return put
