"""Damaged checkpoints: refused in one way, and what a sweep makes of them."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import drill
import pytest
import safetensors.torch
import torch
from drill import Found, Make

from encoderkit.errors import CheckpointError
from encoderkit.sweep import record
from encoderkit.sweep.load import load
from encoderkit.sweep.runner import run_sweep, states
from encoderkit.train import checkpoint
from encoderkit.train import manifest as manifest_

FLIPS = 300


@pytest.fixture
def saved(planned, undisturbed: dict[str, Found], tmp_path: Path) -> Path:
    """A checkpoint of a real run."""
    held = planned.directory / planned.cells[0].name / checkpoint.DIRECTORY
    return Path(shutil.copytree(held, tmp_path / "c"))


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test fail where damaged bytes reach what would make objects of them."""

    def read(*given: Any, **named: Any) -> Any:
        raise AssertionError("damaged bytes were read")

    monkeypatch.setattr(torch, "load", read)
    monkeypatch.setattr(safetensors.torch, "load", read)


@pytest.mark.hazard("Lightning-AI/pytorch-lightning#21431")
def test_every_one_of_300_flipped_bits_is_refused(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_reading(monkeypatch)
    files = {path: path.read_bytes() for path in saved.iterdir()}
    draw = random.Random(0)
    for n in range(FLIPS):
        path = sorted(files)[n % 3]
        data = bytearray(files[path])
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=rf"{path} is damaged|{path.parent}/\w+"):
            checkpoint.load(saved)
        path.write_bytes(files[path])
    monkeypatch.undo()
    assert checkpoint.load(saved) is not None


@pytest.mark.hazard("Lightning-AI/pytorch-lightning#21431")
def test_every_bit_of_the_manifest_counts(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_reading(monkeypatch)
    path = saved / "manifest.json"
    data = path.read_bytes()
    for at in range(0, len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :])  # 1e-05 to 1E-05
        with pytest.raises(CheckpointError):
            checkpoint.load(saved)


@pytest.mark.hazard("pytorch/pytorch#170244")
@pytest.mark.parametrize("name", ["manifest.json", "state.pt", "weights.safetensors"])
def test_truncated_empty_and_foreign_files_are_refused(
    saved: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid_reading(monkeypatch)
    data = (saved / name).read_bytes()
    page = b"<!doctype html><title>404 Not Found</title>"
    deep = b"[" * 100_000
    cut = [data[: len(data) * n // 10] for n in range(10)]
    for wrong in (*cut, data[:-1], page, deep, data + b"\0", b"\0" * len(data)):
        (saved / name).write_bytes(wrong)
        with pytest.raises(CheckpointError, match=f"{name} is damaged: .* Remove .*/c to train"):
            checkpoint.load(saved)


def signed(directory: Path, **changes: Any) -> None:
    """Write a manifest that is right about the files beside it, but for the changes."""
    files = {
        name: hashlib.sha256((directory / name).read_bytes()).hexdigest()
        for name in ("state.pt", "weights.safetensors")
    }
    manifest = {"schema": 1, "files": files, "about": {}, **changes}
    whole = manifest | {"sha256": manifest_._digest(manifest)}
    (directory / "manifest.json").write_bytes(manifest_._dump(whole))


@pytest.mark.parametrize("changes", [{"files": []}, {"about": 3}, {"files": {}}, {"files": None}])
def test_a_signed_manifest_of_another_form_is_refused(saved: Path, changes: dict[str, Any]) -> None:
    signed(saved, **changes)
    with pytest.raises(CheckpointError, match="is damaged"):
        checkpoint.load(saved)


class Foreign:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("executed"),)


@pytest.mark.hazard("ecmwf/anemoi-core#1416")
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("weights.safetensors", b"<html>"),
        ("weights.safetensors", b""),
        ("state.pt", b"<html>"),
        ("state.pt", b""),
        ("state.pt", pickle.dumps(Foreign())),
    ],
)
def test_signed_files_of_another_form_are_refused_and_not_run(
    saved: Path, name: str, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(saved)
    (saved / name).write_bytes(data)
    signed(saved)
    with pytest.raises(CheckpointError, match=f"{name} is damaged"):
        checkpoint.load(saved)
    assert not (saved / "executed").exists()


def interrupted(made: Any, steps: int = 3) -> Path:
    """Leave the plan's first cell behind as a kill leaves it: running, with a checkpoint."""
    from encoderkit.sweep.run import run_cell
    from encoderkit.train.loop import Watch

    class Stop(Watch):
        seen = 0

        def stop(self) -> str:
            return "enough" if self.seen == steps else ""

        def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
            self.seen = step

    (cell, *_) = made.cells
    assert run_cell(cell, made.directory, watch=Stop()) == "interrupted"
    return Path(made.directory / cell.name / checkpoint.DIRECTORY)


@pytest.mark.parametrize("name", ["manifest.json", "state.pt", "weights.safetensors"])
def test_a_cell_whose_checkpoint_is_damaged_fails_alone_and_says_what_to_do(
    make: Make, undisturbed: dict[str, Found], name: str
) -> None:
    made = make(2)
    place = interrupted(made)
    data = (place / name).read_bytes()
    (place / name).write_bytes(data[:-3])
    assert run_sweep(made) == 1
    assert list(states(made).values()) == ["error", "ok"]
    reason = record.load(place.parent).reason
    assert reason.startswith(f"{place / name} is damaged: ")
    assert reason.endswith(f"Remove {place} to train from the start.")
    assert (place / name).read_bytes() == data[:-3]  # what may still be rescued is not touched
    shutil.rmtree(place)
    assert run_sweep(made, retry_failed=True) == 0
    assert drill.found(made.directory) == {c.name: undisturbed[c.name] for c in made.cells}


def test_a_signed_checkpoint_of_something_else_is_an_error_in_words(make: Make) -> None:
    made = make(1)
    place = interrupted(made)
    held = checkpoint.load(place)
    assert held is not None
    for state in ({}, {"extra": {}}, {"extra": {}, "optimizer": {}}, {**held.state, "random": 0}):
        checkpoint.save(place, checkpoint.Checkpoint(held.weights, state, held.about))
        assert run_sweep(made, retry_failed=True) == 1
        assert "the checkpoint is of another model" in record.load(place.parent).reason
    checkpoint.save(place, checkpoint.Checkpoint(held.weights, held.state, {}))
    assert run_sweep(made, retry_failed=True) == 1
    assert "the checkpoint is of another model" in record.load(place.parent).reason


@pytest.mark.hazard("own: finished results are immutable")
def test_a_finished_cell_stays_finished_when_its_checkpoint_is_damaged(
    make: Make, undisturbed: dict[str, Found]
) -> None:
    made = make(1)
    assert run_sweep(made) == 0
    place = made.directory / made.cells[0].name
    manifest = json.loads((place / "checkpoint" / "manifest.json").read_bytes())
    assert manifest["schema"] == 1
    (place / "checkpoint" / "manifest.json").write_text("<html>")
    before = record.load(place)
    assert run_sweep(made) == 0 and record.load(place) == before
    with pytest.raises(CheckpointError, match="manifest.json is damaged"):
        load(place)
