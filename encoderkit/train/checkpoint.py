"""A run's checkpoint: one directory that is whole or refused.

weights.safetensors holds the model's tensors; state.pt the optimizer, the generators and what else
a module keeps; manifest.json how far the run is, and the SHA-256 of all three.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from encoderkit import fs
from encoderkit.errors import CheckpointError, PluginError, StoreError

SCHEMA = 1
DIRECTORY = "checkpoint"  # below the run's own


@dataclass(slots=True)
class Checkpoint:
    """What is kept of a run: tensors by path, anything that torch loads safely, plain JSON."""

    weights: dict[str, Tensor]
    state: dict[str, Any]
    about: dict[str, Any]


def save(directory: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint in `directory`; at any moment the old one or the new one loads.

    Errors: StoreError when the disk refuses, with the old one intact; PluginError when the state
    holds what `load` would refuse.
    """
    # Copies, since safetensors takes neither views nor tensors that share memory.
    weights = {
        path: tensor.detach().to("cpu", copy=True).contiguous()
        for path, tensor in checkpoint.weights.items()
    }
    _require_plain(checkpoint.state.get("extra", {}))
    state = io.BytesIO()
    torch.save(checkpoint.state, state)
    files = {
        "weights.safetensors": safetensors.torch.save(weights),
        "state.pt": state.getvalue(),
    }
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest = {"schema": SCHEMA, "files": digests, "about": checkpoint.about}
    files["manifest.json"] = _dump(manifest | {"sha256": _digest(manifest)})
    try:
        fs.replace_directory(directory, files)
    except OSError as error:
        raise StoreError(
            f"{directory}: the checkpoint cannot be written: {error.strerror}. "
            "The one before it, if any, is intact."
        ) from error


def load(directory: Path) -> Checkpoint | None:
    """Return the checkpoint in `directory`, or None when there is none.

    Errors: CheckpointError for damage of any kind, naming the file and the cause.
    """
    fs.recover_directory(directory)
    if not directory.exists():
        return None
    manifest = _manifest(directory / "manifest.json")
    data = {name: _read(directory / name) for name in ("weights.safetensors", "state.pt")}
    for name, content in data.items():
        if hashlib.sha256(content).hexdigest() != manifest["files"].get(name):
            raise _damage(directory / name, "its SHA-256 is not the one in manifest.json")
    try:
        weights = safetensors.torch.load(data["weights.safetensors"])
    except Exception as error:  # a file that somebody else has made, with the manifest to it
        raise _damage(directory / "weights.safetensors", "it is no safetensors file") from error
    try:
        state = torch.load(io.BytesIO(data["state.pt"]), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise _damage(directory / "state.pt", "it holds more than plain data") from error
    except Exception as error:
        raise _damage(directory / "state.pt", "torch cannot read it") from error
    return Checkpoint(weights, state, manifest["about"])


def _require_plain(extra: dict[str, Any]) -> None:
    for name, value in extra.items():
        held = io.BytesIO()
        try:
            torch.save(value, held)
            held.seek(0)
            torch.load(held, weights_only=True)
        except Exception as error:  # a stranger's object may fail in any way
            raise PluginError(
                f"{name}: a checkpoint takes tensors, numbers, texts, lists and mappings of them, "
                f"not this {type(value).__name__}: {str(error).partition(chr(10))[0]}"
            ) from error


def _manifest(path: Path) -> dict[str, Any]:
    data = _read(path)
    try:
        manifest = json.loads(data)
        del manifest["sha256"]
        # Byte by byte: 1e-05 and 1E-05 are one number, and two only one of which was written.
        same = data == _dump(manifest | {"sha256": _digest(manifest)})
        found, known = manifest["schema"], {*manifest} >= {"files", "about"}
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise _damage(path, "it is no manifest") from error
    if not same:
        raise _damage(path, "it is not what was written")
    if found != SCHEMA:
        raise CheckpointError(f"{path}: schema {found}; this encoderkit reads schema {SCHEMA}.")
    if not known or not all(isinstance(manifest[each], dict) for each in ("files", "about")):
        raise _damage(path, "it names no files, or does not say what they are of")
    return dict(manifest)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _damage(path, str(error.strerror)) from error


def _damage(path: Path, cause: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is damaged: {cause}. Remove {path.parent} to train from the start."
    )


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(_dump(manifest)).hexdigest()


def _dump(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"
