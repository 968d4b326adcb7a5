from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from encoderkit.config.check import check
from encoderkit.errors import StoreError
from encoderkit.plugins import registry
from encoderkit.sweep import lock, record, run, store
from encoderkit.sweep.cell import Cell
from encoderkit.sweep.plan import single
from encoderkit.sweep.run import close_for, run_cell
from encoderkit.train import loop
from encoderkit.train.loop import Watch

SMALL = ["train.steps=4", "train.warmup=1", "train.eval_every=0", "model.d_model=16"]
SMALL += ["model.n_layers=1", "model.n_heads=2", "train.judge_stall=false"]


@pytest.fixture(scope="module")
def cell() -> Cell:
    return single(SMALL)[1]


def steps(place: Path) -> list[int]:
    lines = (place / "metrics.jsonl").read_text().splitlines()
    return [m["step"] for m in map(json.loads, lines) if m["name"] == "train/loss"]


def breaking(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Let training do this instead."""
    monkeypatch.setattr(loop, "fit", lambda *arguments, **names: act())


def test_a_run_leaves_its_whole_directory(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_RUNS", itertools.count())  # the first of its process
    assert run_cell(cell, tmp_path) == "ok"
    place = tmp_path / cell.name
    names = {path.name for path in place.iterdir()}
    assert names == {
        *["config.yaml", "record.json", "metrics.jsonl", "log.txt", "checkpoint", ".lock"]
    }
    tree = yaml.safe_load((place / "config.yaml").read_text())
    assert tree == cell.tree and check(tree, registry())
    found = record.load(place)
    assert (found.id, found.label, found.state, found.reason) == (cell.id, cell.label, "ok", "")
    assert found.overrides == [*SMALL, "seed=0"] and found.reproduce == cell.reproduce
    assert (found.steps, found.tokens, found.parameters) == (4, 4 * 16 * 24, cell.parameters)
    assert found.metrics["loss"] is not None and found.metrics["loss"] > 0
    assert found.parts["norm"]["part"] == "layernorm"
    assert found.budget == {"steps": 4, "batch": 16}
    assert set(found.environment) == {
        *["python", "encoderkit", "platform", "torch", "device", "threads", "isolation", "git"]
    }
    assert found.seconds["total"] >= found.seconds["train"] > 0
    assert found.peak_memory_bytes is not None and 2**26 < found.peak_memory_bytes < 2**36
    assert sum(len(names) for names in found.decay_groups.values()) > 0
    assert found.started < (found.ended or "")
    assert steps(place) == [1, 2, 3, 4]
    log = (place / "log.txt").read_text()
    assert f"started: {cell.reproduce}\n" in log and log.endswith(" ok\n")


@pytest.mark.hazard("own: finished results are immutable")
def test_a_done_cell_is_not_touched(cell: Cell, tmp_path: Path) -> None:
    run_cell(cell, tmp_path)
    place = tmp_path / cell.name
    names = ("record.json", "metrics.jsonl", "config.yaml", "log.txt")
    before = {name: (place / name).read_bytes() for name in names}
    assert run_cell(cell, tmp_path) == "ok"
    assert {name: (place / name).read_bytes() for name in names} == before


def test_a_process_that_is_used_again_is_marked_and_its_memory_unknown(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_RUNS", itertools.count())
    before = torch.get_num_threads()
    assert run_cell(cell, tmp_path / "first") == run_cell(cell, tmp_path) == "ok"
    first, found = (record.load(root / cell.name) for root in (tmp_path / "first", tmp_path))
    assert first.environment["isolation"] == "process" and first.peak_memory_bytes is not None
    assert found.environment["isolation"] == "shared" and found.peak_memory_bytes is None
    assert torch.get_num_threads() == before


def test_an_error_is_a_state_with_its_traceback(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        breaking(patch, lambda: 1 / 0)
        assert run_cell(cell, tmp_path) == "error"
    found = record.load(tmp_path / cell.name)
    assert (found.state, found.reason) == ("error", "ZeroDivisionError: division by zero")
    assert "breaking(patch, lambda: 1 / 0)" in found.traceback
    assert found.traceback.strip() in (tmp_path / cell.name / "log.txt").read_text()
    assert run_cell(cell, tmp_path) == "ok"  # a failed cell is run again
    assert record.load(tmp_path / cell.name).traceback == ""


def test_a_disk_that_has_no_room_for_the_log_still_gets_the_record(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill() -> None:
        (tmp_path / cell.name / "log.txt").unlink()
        (tmp_path / cell.name / "log.txt").mkdir()  # what cannot be written to, even by root
        raise ValueError("no")

    breaking(monkeypatch, fill)
    with pytest.raises(StoreError, match="cannot be written"):
        run_cell(cell, tmp_path)
    found = record.load(tmp_path / cell.name)
    assert (found.state, found.reason) == ("error", "ValueError: no")


def test_a_part_that_changes_the_current_directory_changes_no_more(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    class Walk(Watch):
        def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
            os.chdir(tmp_path / "elsewhere")

    assert run_cell(cell, Path("here"), watch=Walk()) == "ok"
    assert record.load(tmp_path / "here" / cell.name).state == "ok"
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.hazard("own: exit(0) ends a sweep")
@pytest.mark.parametrize("code", [0, 3, None, "words"])
def test_a_run_that_exits_has_failed(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: Any
) -> None:
    def leave() -> None:
        raise SystemExit(code)

    breaking(monkeypatch, leave)
    assert run_cell(cell, tmp_path) == "error"
    assert record.load(tmp_path / cell.name).reason == f"the run called exit({code!r})"


def test_errors_of_ours_are_their_own_words(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise StoreError("in these words")

    breaking(monkeypatch, refuse)
    assert run_cell(cell, tmp_path) == "error"
    assert record.load(tmp_path / cell.name).reason == "in these words"


class Stopper(Watch):
    """Raises signals after a step."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        if step == 2:
            for number in self.numbers:
                signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_in_order_and_it_goes_on_later(
    cell: Cell, tmp_path: Path, number: signal.Signals
) -> None:
    assert run_cell(cell, tmp_path, watch=Stopper(number)) == "interrupted"
    found = record.load(tmp_path / cell.name)
    assert (found.steps, found.reason) == (2, f"asked to stop by {number.name}")
    assert run_cell(cell, tmp_path) == "ok"
    assert steps(tmp_path / cell.name) == [1, 2, 3, 4]
    whole = tmp_path / "undisturbed"
    assert run_cell(cell, whole) == "ok"
    assert record.load(whole / cell.name).metrics == record.load(tmp_path / cell.name).metrics


def test_a_second_signal_ends_it_at_once(cell: Cell, tmp_path: Path) -> None:
    assert run_cell(cell, tmp_path, watch=Stopper(signal.SIGINT, signal.SIGINT)) == "interrupted"
    assert record.load(tmp_path / cell.name).reason == "stopped at once"


def test_a_cell_that_another_process_holds_is_left_alone(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_WAIT", 0.1)
    (tmp_path / cell.name).mkdir()
    with lock.hold(tmp_path / cell.name, 0):
        assert run_cell(cell, tmp_path) == run.HELD
    assert not (tmp_path / cell.name / "record.json").exists()


@pytest.mark.hazard("hydra-ecosystem/hydra#861")
def test_a_part_that_has_changed_since_the_plan_is_refused(cell: Cell, tmp_path: Path) -> None:
    other = dataclasses.replace(cell, id="0" * 12)
    assert run_cell(other, tmp_path) == "error"
    reason = record.load(tmp_path / other.name).reason
    assert f"planned as {'0' * 12}, and now it would be {cell.id}" in reason


@pytest.mark.hazard("own: a directory that cannot be written")
def test_files_that_cannot_be_written_are_an_error(cell: Cell, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="the run's files cannot be written: Not a directory"):
        run_cell(cell, tmp_path / "file")


@pytest.mark.parametrize("state", ["killed", "timeout"])
def test_a_record_is_closed_for_a_process_that_is_gone(
    cell: Cell, tmp_path: Path, state: str
) -> None:
    place = tmp_path / cell.name
    place.mkdir()
    assert close_for(cell, tmp_path, state, "why") == state  # it had not even begun
    found = record.load(place)
    assert (found.state, found.reason, found.label) == (state, "why", cell.label)
    assert found.ended is not None


def test_a_record_that_was_closed_stays_as_it_is(cell: Cell, tmp_path: Path) -> None:
    run_cell(cell, tmp_path)
    before = (tmp_path / cell.name / "record.json").read_bytes()
    assert close_for(cell, tmp_path, "killed", "at its very end") == "ok"
    assert (tmp_path / cell.name / "record.json").read_bytes() == before


@pytest.mark.hazard("kubeflow/katib#845")
def test_a_running_record_of_a_dead_process_reads_as_interrupted(
    cell: Cell, tmp_path: Path
) -> None:
    place = tmp_path / cell.name
    place.mkdir()
    record.save(run.opening(cell), place)
    assert store.read(place).state == "interrupted"
    assert run.finished(cell, tmp_path) is None
