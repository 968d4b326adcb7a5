from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from encoderkit.errors import CheckpointError, PluginError, StoreError
from encoderkit.train.checkpoint import (
    Checkpoint,
    load,
    of_this_model,
    restore,
    save,
    sorted_out,
)

FILES = ["manifest.json", "state.pt", "weights.safetensors"]


def kept(value: float) -> Checkpoint:
    weights = {"a": torch.full((3, 2), value), "b": torch.tensor(7)}
    return Checkpoint(weights, {"random": torch.arange(4)}, {"step": value})


def step(directory: Path) -> Any:
    found = load(directory)
    return None if found is None else found.about["step"]


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint"
    assert load(directory) is None
    for value in (1.5, 2.5):
        save(directory, kept(value))
        found = load(directory)
        assert found is not None and found.about == {"step": value}
        assert found.weights["a"].tolist() == [[value] * 2] * 3 and found.weights["b"].item() == 7
        assert found.state["random"].tolist() == [0, 1, 2, 3]
        assert os.listdir(tmp_path) == ["checkpoint"]
        assert sorted(os.listdir(directory)) == FILES


class Tied(nn.Module):
    """One weight by two names, and one of the same size that is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.own = (nn.Linear(3, 3, bias=False) for _ in range(3))
        self.b.weight = self.a.weight


@pytest.mark.hazard("safetensors/safetensors#98")
def test_a_tied_tensor_is_saved_once_and_tied_again(tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    weights, extra = sorted_out(model)
    turned = torch.arange(6).view(2, 3).T
    save(tmp_path / "c", Checkpoint(weights | {"turned": turned}, {"extra": extra}, {}))
    on_disk = safetensors.torch.load((tmp_path / "c" / "weights.safetensors").read_bytes())
    assert on_disk.keys() == {"a.weight", "own.weight", "turned"}
    found = load(tmp_path / "c")
    assert found is not None and found.state == {"extra": {}}
    assert torch.equal(found.weights.pop("turned"), turned)
    assert found.weights.keys() == weights.keys()
    restore(other, found)
    assert other.a.weight is other.b.weight
    for name, value in other.state_dict().items():
        assert torch.equal(value, weights[name])


@pytest.mark.hazard("pytorch/pytorch#62264")
def test_two_values_of_a_tied_tensor_are_refused(tmp_path: Path) -> None:
    model = Tied()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = {name: value.clone() for name, value in before.items()}
    weights["b.weight"] += 1
    save(tmp_path / "c", Checkpoint(weights, {"extra": {}}, {}))
    found = load(tmp_path / "c")
    assert found is not None
    with (
        pytest.raises(CheckpointError, match="a.weight and b.weight are one tensor"),
        of_this_model(),
    ):
        restore(model, found)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Thing:
    pass


@pytest.mark.parametrize("value", [Thing(), lambda: 0, {"a": [Thing()]}])
def test_what_could_not_be_loaded_is_refused_when_it_is_saved(tmp_path: Path, value: Any) -> None:
    save(tmp_path / "c", Checkpoint({}, {"extra": {"a": {"n": [1, "b", None, 2.5]}}}, {"step": 1}))
    with pytest.raises(PluginError, match=r"layers\.0\.x: a checkpoint takes tensors"):
        save(tmp_path / "c", Checkpoint({}, {"extra": {"layers.0.x": value}}, {}))
    assert step(tmp_path / "c") == 1


def test_later_changes_to_the_model_do_not_reach_what_was_saved(tmp_path: Path) -> None:
    one = kept(1.0)
    save(tmp_path / "c", one)
    one.weights["a"].zero_()
    found = load(tmp_path / "c")
    assert found is not None and found.weights["a"].unique().item() == 1


@pytest.mark.hazard("pytorch/pytorch#170244")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["gone", "empty", "half", "short", "long", "page", "folder"])
def test_damage_is_refused_by_file_and_cause(tmp_path: Path, name: str, damage: str) -> None:
    save(tmp_path / "c", kept(1.0))
    path = tmp_path / "c" / name
    data = path.read_bytes()
    path.unlink()
    match damage:
        case "folder":
            path.mkdir()
        case "empty" | "half" | "short" | "long" | "page":
            changed = {
                "empty": b"",
                "half": data[: len(data) // 2],
                "short": data[:-1],
                "long": data + b"x",
                "page": b"<!doctype html><title>404</title>",
            }
            # A manifest is text: one more letter behind its end is damage, a cut newline is not.
            path.write_bytes(changed[damage] if changed[damage] != data[:-1] else data[:-2])
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path / "c")
    assert str(caught.value).startswith(f"{path} is damaged: ")
    assert str(caught.value).endswith(f"Remove {tmp_path / 'c'} to train from the start.")


@pytest.mark.hazard("Lightning-AI/pytorch-lightning#21431")
@pytest.mark.parametrize("name", FILES)
def test_no_flipped_bit_goes_unseen(tmp_path: Path, name: str) -> None:
    save(tmp_path / "c", kept(1.0))
    path = tmp_path / "c" / name
    data = path.read_bytes()
    draw = random.Random(0)
    for _ in range(100):
        at, bit = draw.randrange(len(data)), 1 << draw.randrange(8)
        path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        with pytest.raises(CheckpointError):
            load(tmp_path / "c")


@pytest.mark.parametrize("text", ["[]", "3", '{"schema": 1}', "null"])
def test_a_manifest_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    save(tmp_path / "c", kept(1.0))
    (tmp_path / "c" / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match="manifest.json is damaged"):
        load(tmp_path / "c")


def test_a_checkpoint_of_a_later_schema_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("encoderkit.train.manifest.SCHEMA", 2)
        save(tmp_path / "c", kept(1.0))
    assert json.loads((tmp_path / "c" / "manifest.json").read_text())["schema"] == 2
    with pytest.raises(CheckpointError, match="manifest.json: schema 2; .* reads schema 1"):
        load(tmp_path / "c")


class Crash(BaseException):
    """The machine stops: nothing of the process runs any more, not even its cleaning up."""


CALLS = [(os, "mkdir"), (os, "fsync"), (os, "replace")]


def count_calls(
    monkeypatch: pytest.MonkeyPatch, fail: Callable[[int], None], *more: tuple[Any, str]
) -> list[str]:
    """Number the calls that change the disk, and let `fail` see each before it happens."""
    seen: list[str] = []
    for module, name in [*CALLS, *more]:
        real = getattr(module, name)

        def call(*args: Any, _real: Any = real, _name: str = name, **options: Any) -> Any:
            seen.append(_name)
            fail(len(seen))
            return _real(*args, **options)

        monkeypatch.setattr(module, name, call)
    return seen


@pytest.mark.hazard("Lightning-AI/pytorch-lightning#688")
def test_a_crash_before_any_call_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removal = (shutil, "rmtree")
    with monkeypatch.context() as patch:
        save(tmp_path / "count", kept(1.0))
        seen = count_calls(patch, lambda n: None, removal)
        save(tmp_path / "count", kept(2.0))
    # The files and their directory, two renames, the parent; what is left over, before and after.
    before, after = ["rmtree"] * 2, ["replace"] * 2 + ["fsync"] + ["rmtree"] * 2
    assert seen == before + ["mkdir"] + ["fsync"] * 4 + after
    found = []
    for n in range(1, len(seen) + 1):
        directory = tmp_path / str(n) / "checkpoint"
        directory.parent.mkdir()
        save(directory, kept(1.0))

        def crash(at: int, n: int = n) -> None:
            if at >= n:
                raise Crash

        with monkeypatch.context() as patch:
            count_calls(patch, crash, removal)
            with pytest.raises(Crash):
                save(directory, kept(2.0))
        found.append(step(directory))
        assert os.listdir(directory.parent) == ["checkpoint"]
        save(directory, kept(3.0))
        assert step(directory) == 3.0
    assert set(found) == {1.0, 2.0} and found == sorted(found)


@pytest.mark.hazard("openhab/openhab-core#2989")
def test_a_disk_that_refuses_leaves_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "checkpoint"
    for n in range(1, 8):
        save(directory, kept(1.0))

        def refuse(at: int, n: int = n) -> None:
            if at == n:
                raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            count_calls(patch, refuse)
            with pytest.raises(StoreError) as caught:
                save(directory, kept(2.0))
        assert f"{directory}: the checkpoint cannot be written: No space left" in str(caught.value)
        assert step(directory) == 1.0 and os.listdir(tmp_path) == ["checkpoint"]


@pytest.mark.hazard("ecmwf/anemoi-core#1416")
def test_a_foreign_pickle_is_not_run(tmp_path: Path) -> None:
    save(tmp_path / "c", Checkpoint({}, {"x": Hostile()}, {}))
    with pytest.raises(CheckpointError, match="state.pt is damaged: it holds more than plain data"):
        load(tmp_path / "c")


class Hostile:
    def __reduce__(self) -> Any:
        return os.getcwd, ()
