from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from encoderkit.errors import StoreError
from encoderkit.sweep import lock, record, store
from encoderkit.sweep.record import Record


def put(root: Path, name: str, **changes: Any) -> Path:
    place = root / f"{name}-{name * 12}"
    place.mkdir(parents=True)
    values: dict[str, Any] = {"label": name, "overrides": [], "seeds": {"seed": 0}, "reproduce": ""}
    made = Record(id=name * 12, started=record.now(), **(values | changes))
    record.save(made, place)
    return place


@pytest.mark.hazard("mlflow/mlflow#1956")
def test_records_are_read_and_strays_are_named(tmp_path: Path) -> None:
    put(tmp_path, "b", state="ok")
    put(tmp_path, "a", state="error")
    (put(tmp_path, "c", state="ok") / record.FILE).write_bytes(b"")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "notes.txt").touch()
    found = store.records(tmp_path)
    assert [each.label for each in found.records] == ["a", "b"]
    assert len(found.malformed) == 2
    assert f"c-{'c' * 12}" in found.malformed[0] and "empty" in found.malformed[1]


def test_planned_cells_without_a_record_are_no_strays(tmp_path: Path) -> None:
    ids = ["a" * 12, "b" * 12, "c" * 12]
    for name in ids:
        (tmp_path / f"x-{name}").mkdir()
    (tmp_path / f"x-{ids[1]}" / record.FILE).write_bytes(b"")
    (only,) = store.records(tmp_path, ids[:2]).malformed[:1]
    assert ids[1] in only  # it has a record, and a broken one
    assert len(store.records(tmp_path, ids[:2]).malformed) == 2
    assert len(store.records(tmp_path).malformed) == 3


@pytest.mark.hazard("kubeflow/katib#845")
def test_a_running_record_that_nobody_holds_was_interrupted(tmp_path: Path) -> None:
    place = put(tmp_path, "a", state="running")
    with lock.hold(place, 0):
        assert store.read(place).state == "running"
    found = store.read(place)
    assert (found.state, found.reason) == (
        "interrupted",
        "its process is gone, and left no other word",
    )
    assert record.load(place).state == "running"  # reading writes nothing


@pytest.mark.hazard("mlflow/mlflow#1956")
def test_of_a_run_and_its_copy_the_run_counts(tmp_path: Path) -> None:
    place = put(tmp_path, "b", state="ok", label="run")
    shutil.copytree(place, tmp_path / f"a-copy-of-{place.name}")
    found = store.records(tmp_path)
    assert [each.label for each in found.records] == ["run"]
    assert found.malformed == [
        f"{tmp_path}/a-copy-of-{place.name}: a copy of {place.name}, which counts"
    ]


def test_a_lock_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(place: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    put(tmp_path, "a", state="running")
    put(tmp_path, "b", state="ok")
    monkeypatch.setattr(lock, "is_free", refuse)
    found = store.records(tmp_path)
    assert [each.label for each in found.records] == ["b"]
    assert "nobody can say whether it runs" in found.malformed[0]


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_a_directory_that_is_none_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="not a results directory: N"):
        store.records(tmp_path / name)


def test_a_plan_is_read_back(tmp_path: Path) -> None:
    assert store.sweep(tmp_path) is None
    (tmp_path / store.SWEEP_FILE).write_bytes(
        record.dump({"schema": 1, "cells": [], "baseline": "a"})
    )
    assert store.sweep(tmp_path) == {"schema": 1, "cells": [], "baseline": "a"}


@pytest.mark.parametrize(
    "content",
    [
        *[b"", b"[]", b'{"schema": 2}', b"\xff", b'{"schema": 1}'],
        *[b'{"schema": 1, "cells": null, "baseline": ""}', b'{"schema": 1, "cells": []}'],
        *[b'{"schema": 1, "cells": [{}], "baseline": ""}'],
    ],
)
def test_a_broken_plan_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / store.SWEEP_FILE).write_bytes(content)
    with pytest.raises(StoreError, match="Run the sweep again"):
        store.sweep(tmp_path)


def test_the_newest_sweep_is_the_one_planned_last(tmp_path: Path) -> None:
    for place, when in (("a", 100), ("deep/b", 300), ("c", 200)):
        (tmp_path / place).mkdir(parents=True)
        path = tmp_path / place / store.SWEEP_FILE
        path.touch()
        os.utime(path, (when, when))
    assert store.newest_sweep(tmp_path) == tmp_path / "deep" / "b"


def test_no_sweep_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no sweep below it. Run one: encoderkit sweep"):
        store.newest_sweep(tmp_path / "runs")
