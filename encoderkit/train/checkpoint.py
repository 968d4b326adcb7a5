"""A run's checkpoint: one directory that is whole or refused.

weights.safetensors holds the model's tensors, a tied one once; state.pt the optimizer, the
generators and what else a module keeps; manifest.json how far the run is, and the SHA-256 of all
three.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from encoderkit import fs
from encoderkit.errors import CheckpointError, PluginError, StoreError
from encoderkit.train import manifest
from encoderkit.train.manifest import DIRECTORY as DIRECTORY

_COMPILED = "_orig_mod."  # what torch.compile puts into the name of all that is in a module


@dataclass(slots=True)
class Checkpoint:
    """What is kept of a run: tensors by path, anything that torch loads safely, plain JSON."""

    weights: dict[str, Tensor]
    state: dict[str, Any]
    about: dict[str, Any]


def sorted_out(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a model's tensors and what else its modules keep, named as if it were not compiled."""
    state = {name.replace(_COMPILED, ""): value for name, value in model.state_dict().items()}
    weights = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    return weights, {name: value for name, value in state.items() if name not in weights}


def restore(model: nn.Module, held: Checkpoint) -> None:
    """Give a model, compiled or not, what a checkpoint holds of it; wants `of_this_model` around.

    Errors: ValueError when it holds two values of one tied tensor, and whatever torch raises.
    """
    for name, first in _tied(sorted_out(model)[0]).items():
        if not torch.equal(held.weights[name], held.weights[first]):
            raise ValueError(f"{first} and {name} are one tensor, and it has two values of them")
    names = {name.replace(_COMPILED, ""): name for name in model.state_dict()}
    state = held.weights | held.state["extra"]
    model.load_state_dict({names.get(name, name): value for name, value in state.items()})


@contextmanager
def of_this_model() -> Iterator[None]:
    """Say in one way that a checkpoint does not fit. Errors: CheckpointError."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        words = " ".join(str(error).split())
        raise CheckpointError(f"the checkpoint is of another model: {words}") from error


def save(directory: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint in `directory`; at any moment the old one or the new one loads.

    Errors: StoreError when the disk refuses, with the old one intact; PluginError when the state
    holds what `load` would refuse.
    """
    # Copies, since safetensors takes neither views nor tensors that share memory.
    tied = _tied(checkpoint.weights)
    weights = {
        path: tensor.detach().to("cpu", copy=True).contiguous()
        for path, tensor in checkpoint.weights.items()
        if path not in tied
    }
    _require_plain(checkpoint.state.get("extra", {}))
    state = io.BytesIO()
    torch.save(checkpoint.state | {"tied": tied}, state)
    files = {
        manifest.WEIGHTS: safetensors.torch.save(weights),
        manifest.STATE: state.getvalue(),
    }
    files[manifest.FILE] = manifest.dump(files, checkpoint.about)
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
    found = manifest.load(directory)
    data = {
        name: manifest.content(directory, name, found)
        for name in (manifest.WEIGHTS, manifest.STATE)
    }
    try:
        weights = safetensors.torch.load(data[manifest.WEIGHTS])
    except Exception as error:  # a file that somebody else has made, with the manifest to it
        path = directory / manifest.WEIGHTS
        raise manifest.damage(path, "it is no safetensors file") from error
    path = directory / manifest.STATE
    try:
        state = torch.load(io.BytesIO(data[manifest.STATE]), map_location="cpu", weights_only=True)
        weights |= {name: weights[first] for name, first in state.pop("tied", {}).items()}
    except pickle.UnpicklingError as error:
        raise manifest.damage(path, "it holds more than plain data") from error
    except Exception as error:
        raise manifest.damage(path, "torch cannot read it") from error
    return Checkpoint(weights, state, found["about"])


def _tied(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the names that are second names of a tensor, each with the first one."""
    firsts: dict[tuple[Any, ...], str] = {}
    found = {}
    for name, tensor in weights.items():
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and (first := firsts.setdefault(place, name)) != name:
            found[name] = first
    return found


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
