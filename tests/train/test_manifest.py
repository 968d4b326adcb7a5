"""What a checkpoint says of itself, read without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from encoderkit.errors import CheckpointError
from encoderkit.train import manifest
from encoderkit.train.checkpoint import Checkpoint, save


def test_a_whole_checkpoint_says_how_far_it_is(tmp_path: Path) -> None:
    save(tmp_path / "c", Checkpoint({"a": torch.ones(2)}, {}, {"step": 3}))
    assert manifest.verify(tmp_path / "c") == {"step": 3}


@pytest.mark.parametrize("name", [manifest.WEIGHTS, manifest.STATE, manifest.FILE])
def test_damage_is_named_by_file(tmp_path: Path, name: str) -> None:
    save(tmp_path / "c", Checkpoint({"a": torch.ones(2)}, {}, {"step": 3}))
    path = tmp_path / "c" / name
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CheckpointError, match=f"{name} is damaged: it"):
        manifest.verify(tmp_path / "c")


def test_a_manifest_of_a_thousand_brackets_is_damage(tmp_path: Path) -> None:
    (tmp_path / manifest.FILE).write_bytes(b"[" * 100_000)
    with pytest.raises(CheckpointError, match="it is no manifest"):
        manifest.load(tmp_path)


def test_no_torch_is_imported() -> None:
    code = "import sys, encoderkit.train.manifest; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
