"""A checkpoint's manifest: how far the run is, and the SHA-256 of the other files. No torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encoderkit.errors import CheckpointError

SCHEMA = 1
DIRECTORY = "checkpoint"  # below the run's own
FILE = "manifest.json"
WEIGHTS, STATE = "weights.safetensors", "state.pt"


def dump(files: Mapping[str, bytes], about: dict[str, Any]) -> bytes:
    """Return the manifest of the files' contents."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest = {"schema": SCHEMA, "files": digests, "about": about}
    return _dump(manifest | {"sha256": _digest(manifest)})


def load(directory: Path) -> dict[str, Any]:
    """Return a checkpoint's manifest. Errors: CheckpointError naming the file and the cause."""
    path = directory / FILE
    data = read(path)
    try:
        manifest = json.loads(data)
        del manifest["sha256"]
        # Byte by byte: 1e-05 and 1E-05 are one number, and two only one of which was written.
        same = data == _dump(manifest | {"sha256": _digest(manifest)})
        found, known = manifest["schema"], {*manifest} >= {"files", "about"}
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise damage(path, "it is no manifest") from error
    if not same:
        raise damage(path, "it is not what was written")
    if found != SCHEMA:
        raise CheckpointError(f"{path}: schema {found}; this encoderkit reads schema {SCHEMA}.")
    if not known or not all(isinstance(manifest[each], dict) for each in ("files", "about")):
        raise damage(path, "it names no files, or does not say what they are of")
    return dict(manifest)


def content(directory: Path, name: str, manifest: Mapping[str, Any]) -> bytes:
    """Return a file of a checkpoint. Errors: CheckpointError when it is not the manifest's."""
    data = read(directory / name)
    if hashlib.sha256(data).hexdigest() != manifest["files"].get(name):
        raise damage(directory / name, f"its SHA-256 is not the one in {FILE}")
    return data


def verify(directory: Path) -> dict[str, Any]:
    """Return what a checkpoint says of its run, when every file is whole.

    Errors: CheckpointError naming the file and the cause.
    """
    manifest = load(directory)
    for name in (WEIGHTS, STATE):
        content(directory, name, manifest)
    return dict(manifest["about"])


def read(path: Path) -> bytes:
    """Return the bytes of a file. Errors: CheckpointError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise damage(path, str(error.strerror)) from error


def damage(path: Path, cause: str) -> CheckpointError:
    """Return the error that says what is wrong with a checkpoint's file."""
    return CheckpointError(
        f"{path} is damaged: {cause}. Remove {path.parent} to train from the start."
    )


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(_dump(manifest)).hexdigest()


def _dump(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"
