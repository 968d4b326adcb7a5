"""Where a run is computed, and what of that its numbers depend on."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from encoderkit.config.schema import RunOptions
from encoderkit.errors import ConfigError, Fault


def pick_device(name: str) -> torch.device:
    """Return the device for `run.device`; auto takes CUDA when there is one.

    Errors: ConfigError when CUDA is asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        problem = f"torch {torch.__version__} finds no CUDA device here."
        raise ConfigError([Fault("run.device=cuda", problem, "Try run.device=auto.")])
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def environment(run: RunOptions) -> dict[str, Any]:
    """Return what a run's bits depend on beside its identity: torch, device, threads."""
    device = pick_device(run.device)
    chip = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    if device.type == "cuda":
        chip = torch.cuda.get_device_name(device)
    return {
        "torch": torch.__version__,
        "device": f"{device.type}, {chip}",
        "threads": run.threads,
    }


@contextmanager
def settings(threads: int, device: torch.device) -> Iterator[None]:
    """Set torch's threads, and give back the caller's threads and random state at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_num_threads(before)


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the state of torch's global generators: what parts of their own accord draw from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Put the global generators back to a state of `random_state`."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
