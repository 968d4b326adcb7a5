from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from encoderkit.api import Part
from encoderkit.config.schema import Chosen
from encoderkit.data import InputError, Task, build_task
from encoderkit.errors import PluginError
from encoderkit.registry import Entry, Owner


class Fine(Task):
    def __init__(self, opts: Any, seed: int) -> None:
        super().__init__(opts, seed)
        self.vocab = self.outputs = 2
        self.trivial_loss, self.baselines, self.data_hash = 1.0, {}, "0" * 12


class Silent(Task):
    """Sets nothing."""


class Broken(Task):
    def __init__(self, opts: Any, seed: int) -> None:
        raise ZeroDivisionError("no rows")


class Refusing(Task):
    def __init__(self, opts: Any, seed: int) -> None:
        raise InputError("task=x: no data")


class Other:
    def __init__(self, opts: Any, seed: int) -> None:
        pass


class Request:
    """As much of a Config as a task is built from."""

    seed_data = 5

    def __init__(self, cls: type) -> None:
        part = Part(kind="task", name="x", target="m:x", summary="")
        self.task = Chosen(Given(part, Owner("dist", "2.0"), cls), part.options())


class Given(Entry):
    def __init__(self, part: Part, owner: Owner, cls: type) -> None:
        super().__init__(part, owner)
        object.__setattr__(self, "cls", cls)

    def load(self) -> Any:
        return vars(self)["cls"]


def build(cls: type) -> Task:
    make: Callable[[Any], Task] = build_task
    return make(Request(cls))


def test_a_task_is_built_with_its_options_and_the_data_seed() -> None:
    task = build(Fine)
    assert isinstance(task, Fine) and task.seed == 5 and task.opts is not None


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (Broken, "task=x (dist 2.0) failed: ZeroDivisionError: no rows"),
        (Other, "task=x (dist 2.0): Other must derive from encoderkit.data.Task"),
        (Silent, "a task must set vocab, outputs, trivial_loss, baselines, data_hash"),
    ],
)
def test_a_task_that_breaks_its_contract_is_named(cls: type, words: str) -> None:
    with pytest.raises(PluginError) as caught:
        build(cls)
    assert words in str(caught.value)


def test_a_task_may_refuse_in_its_own_words() -> None:
    with pytest.raises(InputError, match="^task=x: no data$"):
        build(Refusing)
