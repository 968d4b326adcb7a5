from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import yaml

from encoderkit.data.build import build_task
from encoderkit.errors import CheckpointError, ConfigError, StoreError
from encoderkit.sweep.cell import Cell
from encoderkit.sweep.load import configuration, load, recorded
from encoderkit.sweep.plan import single
from encoderkit.sweep.run import run_cell

SMALL = ["train.steps=2", "train.warmup=1", "train.eval_every=0", "model.d_model=16"]
SMALL += ["model.n_layers=1", "model.n_heads=2", "train.judge_stall=false"]


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    made = single(SMALL)[1]
    assert run_cell(made, tmp_path) == "ok"
    return made


def test_a_run_is_found_again_as_the_cell_it_was(cell: Cell, tmp_path: Path) -> None:
    assert recorded(tmp_path / cell.name) == (tmp_path.resolve(), cell)


def test_another_configuration_or_name_is_another_run(cell: Cell, tmp_path: Path) -> None:
    path = tmp_path / cell.name / "config.yaml"
    tree = yaml.safe_load(path.read_text())
    tree["train"]["lr"] = 0.5
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(StoreError, match=f"was run {cell.id}, and would now be"):
        recorded(path.parent)


@pytest.mark.parametrize("content", [b"\xff", b"a: [", None])
def test_a_configuration_that_cannot_be_read_is_named(
    cell: Cell, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / cell.name / "config.yaml"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StoreError, match="config.yaml: cannot be read"):
        recorded(path.parent)


def test_a_configuration_that_is_none_is_refused(cell: Cell, tmp_path: Path) -> None:
    (tmp_path / cell.name / "config.yaml").write_text("just words")
    with pytest.raises(ConfigError):
        recorded(tmp_path / cell.name)


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        StoreError, match="not a record: there is none. Type the directory of a run"
    ):
        recorded(tmp_path)
    with pytest.raises(StoreError, match="such as runs/train/"):
        recorded(tmp_path / "nix")


def test_whoever_gives_the_directory_above_is_told_its_runs(cell: Cell, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        recorded(tmp_path)
    place = tmp_path.resolve() / cell.name
    assert str(caught.value).endswith(f"Type the directory of a run: {place}.")


def test_a_damaged_record_is_no_missing_one(cell: Cell, tmp_path: Path) -> None:
    (tmp_path / cell.name / "record.json").write_text("{")
    with pytest.raises(StoreError, match="not a record") as caught:
        recorded(tmp_path / cell.name)
    assert "Type the directory" not in str(caught.value)


@pytest.mark.hazard("mlflow/mlflow#1956")
def test_a_copy_is_not_the_run(cell: Cell, tmp_path: Path) -> None:
    copy = tmp_path / f"copy-{'0' * 12}"
    shutil.copytree(tmp_path / cell.name, copy)
    with pytest.raises(StoreError, match="in a directory of another name"):
        recorded(copy)


def test_a_trained_model_comes_back_with_what_it_learned(cell: Cell, tmp_path: Path) -> None:
    directory = tmp_path / cell.name
    model = load(str(directory))
    assert not model.training
    task = build_task(configuration(directory))
    with torch.no_grad():
        sums = [
            (task.loss(model.logits(b.tokens, b.lengths, b.index), b), b.targets.numel())
            for b in task.evaluation()
        ]
    found = sum(float(loss) for loss, _ in sums) / sum(count for _, count in sums)
    record = yaml.safe_load((directory / "record.json").read_text())
    assert found == pytest.approx(record["metrics"]["loss"], abs=1e-6)


def test_a_run_without_a_checkpoint_has_no_model(cell: Cell, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / cell.name / "checkpoint")
    with pytest.raises(CheckpointError, match="the run has no checkpoint. Train it first"):
        load(tmp_path / cell.name)


def test_weights_of_another_model_are_refused(cell: Cell, tmp_path: Path) -> None:
    path = tmp_path / cell.name / "config.yaml"
    tree = yaml.safe_load(path.read_text())
    tree["model"]["d_model"] = 32
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(CheckpointError, match="is of another model: .*size mismatch"):
        load(path.parent)
