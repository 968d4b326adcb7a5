"""Where a sweep stands, read while others write."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from encoderkit.errors import StoreError
from encoderkit.sweep import lock, record, store
from encoderkit.sweep.plan import Plan
from encoderkit.sweep.status import Active, Best, Status, status


def place(asked: Plan, n: int) -> Path:
    return asked.directory / asked.cells[n].name


def change(asked: Plan, n: int, **values: Any) -> None:
    found = dataclasses.replace(record.load(place(asked, n)), **values)
    record.save(found, place(asked, n))


def numbers(found: Status) -> tuple[int, int, int, int]:
    return found.done, found.running, found.failed, found.waiting


def test_a_finished_sweep(sweep: Plan) -> None:
    found = status(sweep.directory)
    assert (numbers(found), found.cells, found.over) == ((14, 0, 0, 0), 14, True)
    assert found.variants == {"norm=rmsnorm": {"ok": 7}, "norm=none": {"ok": 7}}
    assert found.tokens_per_second is not None and found.tokens_per_second > 0
    assert (found.remaining, found.active, found.failures, found.notes) == (0, [], [], [])
    losses = [record.load(place(sweep, n)).metrics["loss"] for n in range(14)]
    (best,) = found.best
    assert best.value == min(each for each in losses if each is not None)
    at = losses.index(best.value)
    assert best == Best("sort", "loss", best.value, sweep.cells[at].label, sweep.cells[at].seed)


def test_a_sweep_that_runs(sweep: Plan) -> None:
    for n in range(4):
        change(sweep, n, seconds={"total": 10.0, "train": 8.0}, tokens=1600)
    for n in range(4, 14):
        shutil.rmtree(place(sweep, n))
    for n, steps in ((4, [1, 2]), (5, [])):
        place(sweep, n).mkdir()
        lines = [json.dumps({"step": step, "name": "train/loss", "value": 1}) for step in steps]
        lines += [json.dumps({"step": step, "name": "val/loss", "value": 2.48}) for step in steps]
        (place(sweep, n) / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 3, "na']))
        start = dataclasses.replace(record.load(place(sweep, 0)), id=sweep.cells[n].id)
        record.save(dataclasses.replace(start, state="running"), place(sweep, n))
    label = sweep.cells[4].label
    with lock.hold(place(sweep, 4), 0), lock.hold(place(sweep, 5), 0):
        found = status(sweep.directory)
    assert (numbers(found), found.over) == ((4, 2, 0, 8), False)
    seeds = [sweep.cells[n].seed for n in (4, 5)]
    still = "the validation loss 2.48 is no better than 0.95 of the trivial loss 2.485"
    assert found.active == [
        Active(label, seeds[0], 2, 4, 2.48, still),
        Active(sweep.cells[5].label, seeds[1], 0, 4, None, ""),
    ]
    assert found.tokens_per_second == 200
    # Eight cells of 10 s, half of one, the whole of another; two at once.
    assert found.remaining == pytest.approx((80 + 5 + 10) / 2)
    gone = status(sweep.directory)  # nobody holds them any more
    assert numbers(gone) == (4, 0, 0, 10) and gone.remaining is None
    assert gone.variants[label]["interrupted"] == 1 and gone.failures == []
    assert not gone.attended
    with lock.attend(sweep.directory):
        assert status(sweep.directory).attended


def test_nothing_has_ended_yet(sweep: Plan) -> None:
    for n in range(14):
        shutil.rmtree(place(sweep, n))
    place(sweep, 0).mkdir()
    found = status(sweep.directory)
    assert numbers(found) == (0, 0, 0, 14)
    assert (found.tokens_per_second, found.remaining, found.best) == (None, None, ())
    assert found.variants["norm=none"] == {"waiting": 7}
    assert found.notes == []


def test_failures_have_their_reason_and_log(sweep: Plan) -> None:
    change(sweep, 0, state="error", reason="ValueError: no\nmore")
    change(sweep, 1, state="interrupted", reason="asked")
    found = status(sweep.directory)
    assert numbers(found) == (12, 0, 1, 1)
    (failed,) = found.failures
    assert (failed.label, failed.state) == (sweep.cells[0].label, "error")
    assert failed.reason == "ValueError: no\nmore" and Path(failed.log).is_file()
    assert sum(states.get("interrupted", 0) for states in found.variants.values()) == 1


@pytest.mark.hazard("Lightning-AI/pytorch-lightning#2636")
def test_the_best_goes_by_the_tasks_metric_and_is_never_a_run_that_broke(sweep: Plan) -> None:
    task = {"metric": "accuracy", "lower_is_better": False}
    for n in range(14):
        change(sweep, n, task=task, metrics={"accuracy": n / 100})
    change(sweep, 0, metrics={"accuracy": None})  # what NaN becomes: first, and behind the best
    change(sweep, 11, metrics={"accuracy": None})
    change(sweep, 12, state="nonfinite", metrics={"accuracy": 2.0})
    change(sweep, 13, state="error", metrics={"accuracy": 3.0})
    (best,) = status(sweep.directory).best
    assert (best.metric, best.value, best.label) == ("accuracy", 0.1, sweep.cells[10].label)
    change(sweep, 0, data_hash="other", parts={"task": {"part": "mlm"}}, metrics={"accuracy": 0.0})
    assert [each.task for each in status(sweep.directory).best] == ["mlm", "sort"]


def test_a_plan_that_was_replaced(sweep: Plan) -> None:
    path = sweep.directory / store.SWEEP_FILE
    plan = json.loads(path.read_bytes())
    plan["cells"] = [{"id": "0" * 12, "slug": "new", "label": "new", "seed": 0}, *plan["cells"][:2]]
    path.write_bytes(record.dump(plan))
    found = status(sweep.directory)
    assert numbers(found) == (2, 0, 0, 1) and found.variants["new"] == {"waiting": 1}
    assert found.notes == ["12 runs are in no plan, and are not counted"]


def test_a_plan_of_ids_alone_will_do(sweep: Plan) -> None:
    path = sweep.directory / store.SWEEP_FILE
    ids = [{"id": sweep.cells[0].id}, {"id": "0" * 12}]
    path.write_bytes(record.dump({"schema": 1, "cells": ids, "baseline": ""}))
    found = status(sweep.directory)
    assert numbers(found) == (1, 0, 0, 1)
    assert set(found.variants) == {sweep.cells[0].id, "0" * 12}


@pytest.mark.parametrize(("content", "notes"), [(None, 0), (b"", 1), (b"<html>", 1)])
def test_without_a_plan_the_runs_are_counted(
    sweep: Plan, content: bytes | None, notes: int
) -> None:
    path = sweep.directory / store.SWEEP_FILE
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    change(sweep, 0, state="error", reason="no")
    found = status(sweep.directory)
    assert numbers(found) == (13, 0, 1, 0) and len(found.notes) == notes
    assert found.failures[0].log == str(place(sweep, 0) / "log.txt")
    assert found.command == ""


def test_what_cannot_be_read_is_named(sweep: Plan) -> None:
    (place(sweep, 0) / "record.json").write_bytes(b'{"schema"')
    found = status(sweep.directory)
    assert numbers(found) == (13, 0, 0, 1)
    assert "not a record" in found.notes[0]
    assert found.notes[-1] == f"what is left out: encoderkit doctor {sweep.directory}"


def test_no_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a results directory"):
        status(tmp_path / "nowhere")


def test_the_newest_sweep_is_shown(sweep: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "newest_sweep", lambda: sweep.directory)
    assert status().directory == sweep.directory


def test_everything_is_plain_data(sweep: Plan) -> None:
    found = json.loads(record.dump(status(sweep.directory).content()))
    assert (found["schema"], found["done"], found["best"][0]["metric"]) == (1, 14, "loss")


def test_others_may_write_and_remove_meanwhile(sweep: Plan) -> None:
    over = threading.Event()

    def disturb() -> None:
        n = 0
        while not over.is_set():
            n = (n + 1) % 14
            shutil.copytree(place(sweep, n), sweep.directory / ".spare")
            shutil.rmtree(place(sweep, n))
            (sweep.directory / ".spare").rename(place(sweep, n))
            (place(sweep, n) / "record.json").touch()
            sweep.save()

    other = threading.Thread(target=disturb)
    other.start()
    try:
        for _ in range(40):
            found = status(sweep.directory)
            assert found.cells == 14 and found.done + found.waiting == 14 and found.done > 7
    finally:
        over.set()
        other.join()
