"""What one run's directory may suffer from, and what each is taken for."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from encoderkit.sweep import record
from encoderkit.sweep.plan import Plan
from encoderkit.sweep.symptoms import Cure, Finding, Known, identity, symptoms
from encoderkit.train.checkpoint import Checkpoint, save

Half = Callable[[Plan, int], Path]
NOBODY = Known(None, {})


def only(place: Path, known: Known = NOBODY) -> Finding:
    (found,) = symptoms(place, known)
    return found


@pytest.fixture
def place(sweep: Plan) -> Path:
    return sweep.directory / sweep.cells[0].name


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("x-0123456789ab", "0123456789ab"),
        ("a\nb-0123456789ab", "0123456789ab"),
        *[("0123456789ab", ""), ("x-0123456789AB", ""), ("x-0123456789ab ", ""), ("x", "")],
    ],
)
def test_a_run_has_its_id_in_its_name(name: str, wanted: str) -> None:
    assert identity(name) == wanted


def test_a_whole_run_has_none(place: Path) -> None:
    assert symptoms(place, NOBODY) == []


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b"", "zero-byte", "empty record.json"),
        (b"<html>", "damaged", "not a record: Expecting value"),
        (b"[" * 100_000, "damaged", "not a record"),
        (b"{}", "damaged", "schema None"),
        (b'{"id": 3}', "damaged", "schema None"),
        (b'{"id": "0123456789ab"}', "moved", "the record of run 0123456789ab in a directory of"),
        (b'{"schema": 2, "id": "%s"}', "damaged", "schema 2, and this encoderkit reads 1"),
    ],
)
def test_a_bad_record(place: Path, content: bytes, kind: str, words: str) -> None:
    mine = identity(place.name).encode()
    (place / "record.json").write_bytes(content.replace(b"%s", mine))
    found = only(place)
    assert (found.kind, found.path, found.cure) == (kind, place, Cure.MOVE)
    assert words in found.what and str(place) not in found.what


def test_a_record_that_is_a_directory(place: Path) -> None:
    (place / "record.json").unlink()
    (place / "record.json").mkdir()
    assert "not a record" in only(place).what


def test_of_a_run_and_its_copy_the_copy_is_named(place: Path) -> None:
    name = identity(place.name)
    assert symptoms(place, Known(None, {name: place.name})) == []
    found = only(place, Known(None, {name: "another"}))
    assert found.kind == "copied" and found.what.endswith("beside another")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "metrics.jsonl is empty"),
        (b'{"step": 1}\n', "metrics.jsonl has 12 bytes, and had"),
        (b"<html>\n" * 1000, "metrics.jsonl cannot be read: line 1: not a metric"),
        (b"[" * 100_000, "metrics.jsonl cannot be read"),
        (b'{"step": 1, "name": "a", "value": 1}\n' * 100 + b'{"st', "metrics.jsonl ends within"),
        (None, "metrics.jsonl cannot be read"),
    ],
)
def test_metrics_that_are_not_what_was_written(
    place: Path, content: bytes | None, words: str
) -> None:
    path = place / "metrics.jsonl"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    found = only(place)
    assert (found.kind, found.path, found.cure) == ("damaged", place, Cure.MOVE)
    assert words in found.what


def test_metrics_of_half_a_run_may_end_within_a_line(sweep: Plan, half: Half) -> None:
    place = half(sweep, 0)
    assert symptoms(place, NOBODY) == []
    with open(place / "metrics.jsonl", "ab") as file:
        file.write(b'{"st')
    assert symptoms(place, NOBODY) == []
    (place / "metrics.jsonl").unlink()
    assert "metrics.jsonl cannot be read" in only(place).what
    shutil.rmtree(place / "checkpoint")
    assert symptoms(place, NOBODY) == []  # it begins anew by itself


@pytest.mark.parametrize("content", [b"", b"<html>", b"a: [", b"\xff\xfe\xff", b"[" * 5000])
def test_a_configuration_that_cannot_be_read(place: Path, content: bytes) -> None:
    (place / "config.yaml").write_bytes(content)
    found = only(place)
    assert (found.kind, found.path) == ("damaged", place) and "config.yaml" in found.what


def test_half_a_run_writes_its_configuration_again(sweep: Plan, half: Half) -> None:
    place = half(sweep, 0)
    (place / "config.yaml").unlink()
    assert symptoms(place, NOBODY) == []


def test_a_damaged_checkpoint_of_a_done_run_costs_no_results(place: Path) -> None:
    (place / "checkpoint" / "manifest.json").write_bytes(b"")
    found = only(place)
    assert (found.kind, found.path) == ("damaged", place / "checkpoint")
    assert found.what == "a checkpoint that does not load: manifest.json is damaged: it is no " + (
        "manifest"
    )
    assert found.means == "its results stand, its weights are lost"


def test_a_damaged_checkpoint_of_half_a_run_starts_it_anew(sweep: Plan, half: Half) -> None:
    place = half(sweep, 0)
    shutil.rmtree(place / "checkpoint")
    (place / "checkpoint").touch()
    assert only(place).means == "the next sweep runs the cell anew"


def test_the_checkpoint_of_another_run_is_named(sweep: Plan) -> None:
    one, two = (sweep.directory / cell.name for cell in sweep.cells[:2])
    shutil.rmtree(one / "checkpoint")
    save(one / "checkpoint", Checkpoint({}, {}, {"identity": "x", "metrics_bytes": 10**6}))
    assert "it is of run x" in only(one).what  # how long its metrics were says nothing of these
    shutil.rmtree(one / "checkpoint")
    shutil.copytree(two / "checkpoint", one / "checkpoint")
    assert f"it is of run {identity(two.name)}" in only(one).what


@pytest.mark.hazard("Lightning-AI/pytorch-lightning#21431")
def test_checkpoints_that_were_kept_are_looked_at_too(sweep: Plan) -> None:
    one, two = (sweep.directory / cell.name for cell in sweep.cells[:2])
    shutil.copytree(one / "checkpoint", one / "checkpoint-best")
    shutil.copytree(one / "checkpoint", one / "checkpoint-4")
    assert symptoms(one, NOBODY) == []
    weights = one / "checkpoint-4" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    found = only(one)
    assert (found.kind, found.path, found.cure) == ("damaged", one / "checkpoint-4", Cure.MOVE)
    assert "weights.safetensors is damaged: its SHA-256" in found.what
    shutil.rmtree(one / "checkpoint-4")
    shutil.copytree(two / "checkpoint", one / "checkpoint-4")
    assert f"it is of run {identity(two.name)}" in only(one).what
    shutil.rmtree(one / "checkpoint-4")
    (one / "checkpoint-4").touch()
    assert "Not a directory" in only(one).what


def test_what_is_left_of_replacing_a_checkpoint(place: Path) -> None:
    whole, old, new = (
        place / name for name in ("checkpoint", ".checkpoint.old", ".checkpoint.new")
    )
    shutil.copytree(whole, old)
    assert (only(place).path, only(place).cure) == (old, Cure.MOVE)
    shutil.move(old, new)
    assert (only(place).path, only(place).cure) == (new, Cure.MOVE)
    shutil.move(whole, old)
    first, second = symptoms(place, NOBODY)
    assert (first.path, first.cure) == (old, Cure.RESTORE)
    assert (second.path, second.cure) == (new, Cure.MOVE)
    (old / "state.pt").write_bytes(b"")
    first, second = symptoms(place, NOBODY)
    assert (first.kind, first.path, first.cure) == ("damaged", old, Cure.MOVE)


def test_strays_are_named(place: Path) -> None:
    (place / ".config.yaml.12.tmp").touch()
    (place / "log.txt").unlink()
    (place / "log.txt").mkdir()
    (place / "plot.png").write_bytes(b"x")
    (place / "zero").touch()
    (place / "checkpoint" / "mine").touch()
    found = [(each.kind, each.path.name, each.cure) for each in symptoms(place, NOBODY)]
    assert found == [
        ("half-written", ".config.yaml.12.tmp", Cure.MOVE),
        ("foreign", "log.txt", Cure.MOVE),
        ("foreign", "plot.png", Cure.MOVE),
        ("zero-byte", "zero", Cure.MOVE),
        ("foreign", "mine", Cure.MOVE),
    ]


def test_a_run_whose_process_is_gone(place: Path) -> None:
    found = record.load(place)
    found.state = "running"
    record.save(found, place)
    assert (only(place).kind, only(place).cure) == ("left behind", Cure.CLOSE)


def test_a_run_without_a_record(place: Path) -> None:
    (place / "record.json").unlink()
    assert (only(place).kind, only(place).path) == ("half-written", place)
    for name in ("checkpoint", "metrics.jsonl"):
        target = place / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    assert symptoms(place, NOBODY) == []  # the run is about to begin
    (place / ".record.json.12.tmp").touch()
    assert only(place).path.name == ".record.json.12.tmp"


def test_a_run_that_is_in_no_plan_is_a_note(place: Path, tmp_path: Path) -> None:
    name = identity(place.name)
    assert symptoms(place, Known(frozenset({name}), {})) == []
    found = only(place, Known(frozenset(), {}))
    assert (found.kind, found.cure, found.note) == ("unplanned", Cure.NONE, True)
    assert json.loads((place / "record.json").read_bytes())["label"] in found.what
    empty = tmp_path / f"x-{'0' * 12}"
    empty.mkdir()
    assert only(empty, Known(frozenset(), {})).note
    assert symptoms(empty, Known(frozenset({"0" * 12}), {})) == []


def test_no_torch_is_imported() -> None:
    code = "import sys, encoderkit.sweep.doctor, encoderkit.sweep.status\n"
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
