"""Damage of every kind: named, repaired without a loss, and the next sweep's numbers the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from encoderkit.errors import StoreError
from encoderkit.sweep import doctor, lock, record, store
from encoderkit.sweep.doctor import WARD, Examination, examine, repair
from encoderkit.sweep.plan import Plan
from encoderkit.sweep.run import run_cell
from encoderkit.sweep.symptoms import Cure
from encoderkit.train import manifest

Half = Callable[[Plan, int], Path]
PAGE = b"<!doctype html><title>404</title>"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def rename(place: Path) -> None:
    place.rename(place.with_name("the best one"))


def reopen(place: Path) -> None:
    found = record.load(place)
    found.state, found.ended = "running", None
    record.save(found, place)


def set_aside(place: Path) -> None:
    shutil.copytree(place / "checkpoint", place / ".checkpoint.new")
    cut(place / ".checkpoint.new" / "state.pt")
    (place / "checkpoint").rename(place / ".checkpoint.old")


def copied(place: Path) -> None:
    shutil.copytree(place, place.with_name("copy of " + place.name))


def misnamed(place: Path) -> None:
    shutil.copytree(place, place.with_name(f"{place.name} (1)"))


def damages(asked: Plan) -> list[tuple[str, bool, Callable[[Path], object]]]:
    """Return ways to harm a run: the kind that is found, whether of half a run, and how."""
    return [
        ("half-written", False, lambda p: (p / "record.json").unlink()),
        ("zero-byte", False, lambda p: (p / "record.json").write_bytes(b"")),
        ("damaged", False, lambda p: (p / "record.json").write_bytes(PAGE)),
        ("damaged", True, lambda p: cut(p / "record.json")),
        ("moved", False, rename),
        ("copied", False, copied),
        ("copied", False, misnamed),
        ("damaged", True, lambda p: flip(p / "checkpoint" / "weights.safetensors")),
        ("half-written", True, set_aside),
        ("left behind", True, reopen),
        ("damaged", True, lambda p: cut(p / "metrics.jsonl")),
        ("damaged", False, lambda p: flip(p / "checkpoint" / "state.pt")),
        ("half-written", True, lambda p: (p / ".record.json.77.tmp").write_bytes(b"{")),
        ("foreign", False, lambda p: (p / "plot.png").write_bytes(b"x")),
    ]


def kinds(seen: Examination) -> list[str]:
    return [each.kind for each in seen.findings]


def faults(seen: Examination) -> list[tuple[str, str]]:
    return [(e.kind, str(e.path.relative_to(seen.directory))) for e in seen.findings]


def contents(root: Path) -> Counter[bytes]:
    return Counter(p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != lock.FILE)


def run_again(asked: Plan) -> None:
    asked.save()
    assert {run_cell(cell, asked.directory) for cell in asked} == {"ok"}


def assert_same(asked: Plan, undisturbed: Plan) -> None:
    for cell in asked:
        here, there = asked.directory / cell.name, undisturbed.directory / cell.name
        found = (here / "metrics.jsonl").read_bytes()
        assert found == (there / "metrics.jsonl").read_bytes(), cell.name
        assert record.load(here).metrics == record.load(there).metrics


def test_half_a_run_has_a_checkpoint_to_go_on_from(sweep: Plan, half: Half) -> None:
    about = manifest.verify(half(sweep, 0) / "checkpoint")
    assert 0 < about["progress"]["step"] < 4 and about["metrics_bytes"] > 30


def test_a_sweep_as_it_was_left_is_well(undisturbed: Plan) -> None:
    seen = examine(undisturbed.directory)
    assert seen.well and seen.findings == [] and seen.held == []


@pytest.mark.hazard("mlflow/mlflow#1956")
def test_each_damage_is_repaired_and_the_numbers_come_back(
    sweep: Plan, undisturbed: Plan, half: Half
) -> None:
    ways = damages(sweep)
    assert len(ways) == len(sweep)
    for n, (cell, (_, halved, harm)) in enumerate(zip(sweep, ways, strict=True)):
        harm(half(sweep, n) if halved else sweep.directory / cell.name)
    before = contents(sweep.directory)
    found = examine(sweep.directory)
    wanted = Counter(kind for kind, _, _ in ways) + Counter({"half-written": 1})  # set_aside: two
    assert Counter(kinds(found)) == wanted
    assert not found.well and contents(sweep.directory) == before  # looking writes nothing

    seen = repair(sweep.directory)
    assert seen.well and seen.failed == {} and len(seen.done) == len(ways) + 1
    left = contents(sweep.directory)
    gone = before - left  # only the record that was closed has changed
    assert len(gone) <= 1 and all(b'"state": "running"' in data for data in gone)
    assert examine(sweep.directory).findings == [] and repair(sweep.directory).findings == []
    run_again(sweep)
    assert_same(sweep, undisturbed)
    assert examine(sweep.directory).findings == []


@pytest.mark.parametrize("n", range(14))
def test_each_damage_is_found_by_itself(sweep: Plan, half: Half, n: int) -> None:
    kind, halved, harm = damages(sweep)[n]
    place = sweep.directory / sweep.cells[3].name
    harm(half(sweep, 3) if halved else place)
    seen = examine(sweep.directory)
    assert set(kinds(seen)) == {kind} and not seen.well
    assert all(each.cure is not Cure.NONE and not each.note for each in seen.findings)
    assert repair(sweep.directory).well
    assert repair(sweep.directory).findings == []


def test_what_a_process_holds_is_left_alone(sweep: Plan) -> None:
    place = sweep.directory / sweep.cells[0].name
    other = sweep.directory / sweep.cells[1].name
    for each in (place, other):
        (each / "record.json").write_bytes(b"")
    before = contents(place)
    with lock.hold(place, 0):
        for look in (examine, repair):
            seen = look(sweep.directory)
            assert seen.held == [place]
            assert faults(seen) == [("zero-byte", other.name)]
        assert contents(place) == before
    assert not other.exists()


def test_what_a_process_holds_is_not_even_read(
    sweep: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = sweep.directory / sweep.cells[0].name
    read: list[Path] = []
    monkeypatch.setattr(doctor, "symptoms", lambda where, known: read.append(where) or [])
    with lock.hold(place, 0):
        examine(sweep.directory)
    assert place not in read and len(read) == len(sweep) - 1


def test_of_a_run_and_its_copies_the_planned_name_counts(sweep: Plan) -> None:
    place = sweep.directory / sweep.cells[0].name
    copy = place.with_name(f"a-{sweep.cells[0].id}")  # shorter, and before it in the alphabet
    shutil.copytree(place, copy)
    assert faults(examine(sweep.directory)) == [("copied", copy.name)]
    (sweep.directory / store.SWEEP_FILE).unlink()  # then the shortest does
    assert ("copied", place.name) in faults(examine(sweep.directory))


def test_a_process_that_comes_after_the_look_is_left_alone(
    sweep: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = sweep.directory / sweep.cells[0].name
    (place / "record.json").write_bytes(b"")
    with lock.hold(place, 0):
        monkeypatch.setattr(lock, "is_free", lambda directory: True)
        seen = repair(sweep.directory)
    assert (seen.held, seen.findings) == ([place], []) and place.exists()


def test_a_process_that_comes_while_one_looks_is_no_fault(
    sweep: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = sweep.directory / sweep.cells[0].name
    (place / "record.json").write_bytes(b"")
    answers = iter([True, False])
    real = lock.is_free
    monkeypatch.setattr(lock, "is_free", lambda p: next(answers) if p == place else real(p))
    seen = examine(sweep.directory)
    assert (seen.held, seen.findings, seen.well) == ([place], [], True)


def test_damage_beside_the_runs(sweep: Plan) -> None:
    root = sweep.directory
    (root / "notes.txt").write_text("mine")
    (root / "nothing.csv").touch()
    (root / "folder").mkdir()
    (root / "other" / "deep").mkdir(parents=True)
    (root / "other" / "deep" / "sweep.json").write_text("{}")
    ask = [sys.executable, "-c", "import os; print(os.getpid())"]
    dead = subprocess.run(ask, capture_output=True, check=True)
    (root / f".sweep.json.{int(dead.stdout)}.tmp").write_bytes(b"{")
    (root / f".sweep.json.{os.getpid()}.tmp").write_bytes(b"{")  # it is still being written
    (root / ".gitignore").write_text("*")
    before = contents(root)
    wanted = [
        ("half-written", f".sweep.json.{int(dead.stdout)}.tmp"),
        ("foreign", "folder"),
        ("foreign", "notes.txt"),
        ("zero-byte", "nothing.csv"),
        ("nested", "other"),
    ]
    assert faults(examine(root)) == wanted
    seen = repair(root)
    assert faults(seen) == wanted and seen.well and contents(root) == before
    (ward,) = (root / WARD).iterdir()
    assert (ward / "notes.txt").read_text() == "mine" and (ward / "folder").is_dir()
    assert faults(examine(root)) == [("nested", "other")] and examine(root).well
    assert (root / f".sweep.json.{os.getpid()}.tmp").exists()


@pytest.mark.parametrize(
    ("content", "kind"), [(b"", "zero-byte"), (PAGE, "damaged"), (b"{}", "damaged")]
)
def test_a_plan_that_does_not_load_is_moved(
    sweep: Plan, undisturbed: Plan, content: bytes, kind: str
) -> None:
    path = sweep.directory / store.SWEEP_FILE
    path.write_bytes(content)
    assert faults(examine(sweep.directory)) == [(kind, store.SWEEP_FILE)]
    assert repair(sweep.directory).well and not path.exists()
    seen = repair(sweep.directory)  # nothing that could be done, and yet not all is well
    assert kinds(seen) == ["missing"] and seen.done == {} and not seen.well
    with pytest.raises(StoreError, match="no sweep below it"):
        store.newest_sweep(sweep.directory.parent)  # what was moved away is none
    run_again(sweep)
    assert examine(sweep.directory).findings == []
    assert_same(sweep, undisturbed)


def test_runs_of_no_plan_are_named_and_stay(sweep: Plan) -> None:
    path = sweep.directory / store.SWEEP_FILE
    plan = json.loads(path.read_bytes())
    left = plan["cells"].pop()
    path.write_bytes(record.dump(plan))
    empty = sweep.directory / f"x-{'0' * 12}"
    empty.mkdir()
    seen = repair(sweep.directory)
    name = f"{left['slug']}-{left['id']}"
    assert sorted(faults(seen)) == sorted([("unplanned", name), ("unplanned", empty.name)])
    assert seen.well and seen.done == {} and empty.exists()
    path.unlink()
    assert kinds(examine(sweep.directory)) == ["missing"]  # without a plan none is in none


def test_runs_that_no_sweep_planned_need_no_plan(sweep: Plan) -> None:
    (sweep.directory / store.SWEEP_FILE).unlink()
    for cell in sweep:
        found = record.load(sweep.directory / cell.name)
        found.against = {}
        record.save(found, sweep.directory / cell.name)
    assert examine(sweep.directory).findings == []


def test_cells_that_have_not_begun_are_no_fault(sweep: Plan) -> None:
    for n, cell in enumerate(sweep):
        place = sweep.directory / cell.name
        for each in place.iterdir():
            if each.name not in ("log.txt", ".lock", "config.yaml")[:n]:
                shutil.rmtree(each) if each.is_dir() else each.unlink()
    assert examine(sweep.directory).findings == []


@pytest.mark.parametrize("make", [None, Path.mkdir, Path.touch])
def test_what_holds_no_results_is_refused(
    tmp_path: Path, make: Callable[[Path], None] | None
) -> None:
    if make:
        make(tmp_path / "x")
    for look in (examine, repair):
        with pytest.raises(StoreError, match="Give the directory of a sweep"):
            look(tmp_path / "x")


def test_the_root_of_all_sweeps_is_not_taken_for_one(sweep: Plan) -> None:
    with pytest.raises(StoreError, match="holds no sweep and no run"):
        repair(sweep.directory.parent)


def test_what_cannot_be_moved_is_said(sweep: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    (sweep.directory / "notes.txt").touch()

    def refuse(*paths: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", refuse)
    seen = repair(sweep.directory)
    assert not seen.well and seen.done == {} and "No space left" in seen.failed[0]
    assert (sweep.directory / "notes.txt").exists()


def test_a_lock_that_cannot_be_taken_is_said(sweep: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    place = sweep.directory / sweep.cells[0].name
    (place / "plot.png").touch()

    def refuse(*arguments: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(lock, "hold", refuse)
    seen = repair(sweep.directory)
    assert not seen.well and "Read-only" in seen.failed[0] and (place / "plot.png").exists()


def test_what_cannot_be_looked_at_is_said(sweep: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(place: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(lock, "is_free", refuse)
    seen = examine(sweep.directory)
    assert set(kinds(seen)) == {"unreadable"} and not seen.well


def test_what_goes_while_one_looks_is_no_fault(
    sweep: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(place: Path) -> bool:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(lock, "is_free", gone)
    assert examine(sweep.directory).findings == []


@pytest.mark.parametrize(
    ("error", "lives"),
    [(None, True), (PermissionError, True), (ProcessLookupError, False), (OverflowError, False)],
)
def test_a_process_may_be_another_persons(
    error: type[Exception] | None, lives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(process: int, number: int) -> None:
        if error:
            raise error

    monkeypatch.setattr(os, "kill", kill)
    assert doctor._lives(1) is lives


def test_everything_is_plain_data(sweep: Plan) -> None:
    (sweep.directory / "a\nb\x1b[31m").touch()
    seen = json.loads(record.dump(repair(sweep.directory).content()))
    (found,) = seen["findings"]
    assert (seen["schema"], seen["well"], seen["held"]) == (1, True, [])
    assert found["path"] == "a\nb\x1b[31m" and found["done"].startswith("moved to .doctor/")
    assert set(found) == {"kind", "path", "what", "means", "repair", "note", "done", "failed"}
