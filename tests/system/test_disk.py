"""A disk that is full, or fails at its N-th call, for every N of a whole run."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import drill
import pytest
from drill import Found, Make, Wire, full_at

from encoderkit.errors import StoreError
from encoderkit.report.table import compare
from encoderkit.sweep import record, runner, store
from encoderkit.sweep.cell import Cell
from encoderkit.sweep.doctor import examine
from encoderkit.sweep.run import run_cell
from encoderkit.sweep.runner import run_sweep, states
from encoderkit.sweep.status import status

FULL = ("No space left on device", "its process is gone, and left no other word")


@pytest.fixture(scope="module")
def calls(planned, tmp_path_factory) -> int:
    root = tmp_path_factory.mktemp("one")
    with Wire().laid() as wire:
        assert run_cell(planned.cells[0], root) == "ok"
    return len(wire.seen)


def state_on_a_disk_that_fails(cell: Cell, root: Path, act: drill.Act) -> str:
    """Return how a run ends there; whatever it raises must be one clear StoreError."""
    try:
        with Wire(act).laid():
            return run_cell(cell, root)
    except StoreError as error:
        assert str(root) in str(error) and "No space left on device" in str(error)
        return "raised"


@pytest.mark.hazard("openhab/openhab-core#2989", "own: I/O that fails at the N-th call")
@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
def test_a_disk_that_fails_at_the_nth_call(
    planned, calls: int, undisturbed: dict[str, Found], tmp_path: Path, for_good: bool
) -> None:
    cell, ends = planned.cells[0], set()
    assert calls > 60
    for n in range(1, calls + 1):
        root = tmp_path / str(n)
        root.mkdir()
        state = state_on_a_disk_that_fails(cell, root, full_at(n, for_good=for_good))
        ends.add(state)
        if (root / cell.name / "record.json").exists():
            found = store.read(root / cell.name)
            assert found.state == state or state == "raised", n
            assert found.done or any(words in found.reason for words in FULL), n
            kept = drill.finished(root)
        else:
            assert state == "raised"
            kept = {}
        assert run_cell(cell, root) == "ok", n
        whole = undisturbed[cell.name]
        if state == "ok":  # what cannot be cleared away after its last checkpoint stays
            left = (root / cell.name / ".checkpoint.old").exists()
            whole = replace(whole, files=[".checkpoint.old"] * left + whole.files)
        assert drill.found(root) == {cell.name: whole}, n
        assert {path: path.read_bytes() for path in kept} == kept, n
    assert ends == {"error", "ok", "raised"} - ({"error", "ok"} if for_good else set())


@pytest.mark.hazard("openhab/openhab-core#2989")
def test_cells_on_a_full_disk_say_so_and_go_on_later(
    make: Make, undisturbed: dict[str, Found], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make(2)
    with monkeypatch.context() as patch:
        # The record fits, a checkpoint does not: RLIMIT_FSIZE is the full disk of one process.
        patch.setattr(runner, "_in_process", partial(drill.full, 16_000))
        assert run_sweep(plan) == 1
    assert list(states(plan).values()) == ["error", "error"]
    reason = record.load(plan.directory / plan.cells[0].name).reason
    assert "the checkpoint cannot be written: File too large" in reason
    assert "The one before it, if any, is intact." in reason
    assert run_sweep(plan, retry_failed=True) == 0
    assert drill.found(plan.directory) == {c.name: undisturbed[c.name] for c in plan.cells}


def test_a_disk_with_no_room_for_a_record_still_has_its_words(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make(1)
    monkeypatch.setattr(runner, "_in_process", partial(drill.full, 0))
    assert run_sweep(plan) == 1  # the runner has room, and closes the record
    found = record.load(plan.directory / plan.cells[0].name)
    assert found.state == "error"
    assert found.reason.startswith("StoreError: ") and "File too large" in found.reason


@pytest.mark.hazard("own: a directory that cannot be written")
def test_a_directory_that_may_only_be_read_is_read_and_stays(make: Make) -> None:
    plan = make(2)
    assert run_cell(plan.cells[0], plan.directory) == "ok"
    plan.save()
    kept = drill.finished(plan.directory)
    assert kept

    def refuse(n: int) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    with Wire(refuse).laid() as wire:
        assert [row.n for row in compare(plan.directory).rows] == [1]
        assert (status(plan.directory).done, status(plan.directory).waiting) == (1, 1)
        assert examine(plan.directory).findings == [] and wire.seen == []
        with pytest.raises(StoreError, match=f"{plan.directory}: .*Permission denied"):
            run_sweep(plan)
        with pytest.raises(StoreError, match=f"{plan.cells[1].name}: .*Permission denied"):
            run_cell(plan.cells[1], plan.directory)
    assert drill.finished(plan.directory) == kept
    assert run_sweep(plan) == 0 and kept.items() <= drill.finished(plan.directory).items()


def test_a_disk_that_fails_under_the_plan_leaves_no_half_of_it(make: Make) -> None:
    plan = make(1)
    for n in range(1, 7):
        with Wire(full_at(n)).laid(), pytest.raises(StoreError, match="no results can be written"):
            plan.save()
        assert not (plan.directory / store.SWEEP_FILE).exists() or n > 4
    plan.save()
    assert [path.name for path in plan.directory.iterdir()] == [store.SWEEP_FILE]
