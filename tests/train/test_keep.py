from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from encoderkit.errors import StoreError
from encoderkit.train.keep import DirectoryKeeper, Keeper
from encoderkit.train.metrics import MetricsFile


def test_the_checkpoint_knows_how_long_the_metrics_were(tmp_path: Path) -> None:
    keeper = DirectoryKeeper(tmp_path / "new" / "run")
    keeper.begin(None)
    keeper.log(1, "a", 1.0)
    keeper.save({}, {}, {"step": 1})
    keeper.log(2, "a", 2.0)
    keeper.close()
    found = keeper.load()
    assert found is not None
    first = b'{"step": 1, "name": "a", "value": 1.0}\n'
    assert found.about == {"step": 1, "metrics_bytes": len(first)}
    again = DirectoryKeeper(tmp_path / "new" / "run")
    again.begin(found)
    again.close()
    assert keeper.metrics.read_bytes() == first


class Crash(BaseException):
    """The process is gone."""


def dying(real: Callable[..., None], left: list[int]) -> Callable[..., None]:
    """Return a function that works as long as something is left."""

    def call(*given: Any, **named: Any) -> None:
        if not left[0]:
            raise Crash
        left[0] -= 1
        real(*given, **named)

    return call


@pytest.mark.hazard("Lightning-AI/pytorch-lightning#688")
def test_a_crash_while_the_checkpoint_is_removed_leaves_it_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for n in range(6):
        place = tmp_path / str(n)
        keeper = DirectoryKeeper(place)
        keeper.begin(None)
        keeper.save({}, {}, {"step": 1})
        keeper.close()
        with monkeypatch.context() as patch, nullcontext() if n == 5 else pytest.raises(Crash):
            left = [n]
            for name in ("replace", "unlink", "rmdir"):
                patch.setattr(os, name, dying(getattr(os, name), left))
            keeper.drop()
        found.append(keeper.load() is not None)
        assert [path.name for path in place.glob("*checkpoint*")] == ["checkpoint"] * found[-1]
    assert found == [True] + [False] * 5  # before the rename; three files, their directory; whole


def test_the_null_keeper_has_nothing() -> None:
    keeper = Keeper()
    keeper.begin(None)
    keeper.log(1, "a", 1.0)
    keeper.flush()
    keeper.save({}, {}, {})
    keeper.close()
    assert keeper.load() is None
    assert vars(keeper) == {}


@pytest.mark.hazard("own: a directory that cannot be written")
def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file/run cannot be written: Not a directory"):
        DirectoryKeeper(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("log", lambda keeper: keeper.log(1, "a", 1.0)),
        ("flush", lambda keeper: keeper.flush()),
        ("sync", lambda keeper: keeper.save({}, {}, {})),
        ("close", lambda keeper: keeper.close()),
    ],
)
def test_metrics_that_cannot_be_written_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, call: Callable[[Any], None]
) -> None:
    keeper = DirectoryKeeper(tmp_path)
    keeper.begin(None)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(MetricsFile, method, full)
        with pytest.raises(StoreError, match="metrics.jsonl cannot be written: No space left"):
            call(keeper)
    assert keeper.load() is None
    keeper.close()
