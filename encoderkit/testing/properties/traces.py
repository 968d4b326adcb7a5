"""What a part must leave alone: everything that is not its own."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from encoderkit.api import KINDS
from encoderkit.testing.case import Broken, Case, backward, ladder, require
from encoderkit.testing.examine import proves
from encoderkit.testing.properties.draws import generators
from encoderkit.testing.subject import STREAM, Subject


def surroundings() -> dict[str, Any]:
    """Return what all parts of a process share."""
    return {
        "torch's default dtype": torch.get_default_dtype(),
        "torch's default device": torch.get_default_device(),
        "torch's number of threads": torch.get_num_threads(),
        "whether gradients are on": torch.is_grad_enabled(),
        "torch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "torch's anomaly mode": torch.is_anomaly_enabled(),
        "the global generators": generators(),
        "the filters of warnings": list(warnings.filters),
        "the environment": dict(os.environ),
        "the working directory": os.getcwd(),
        "the search path": list(sys.path),
        "the recursion limit": sys.getrecursionlimit(),
    }


@contextlib.contextmanager
def untouched(what: str) -> Iterator[None]:
    """Put things back, and name what was changed or printed.

    Errors: Broken.
    """
    before, said = surroundings(), io.StringIO()
    kept = torch.get_rng_state()
    filters = list(warnings.filters)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        yield
    after = surroundings()
    torch.set_default_dtype(before["torch's default dtype"])
    torch.set_num_threads(before["torch's number of threads"])
    torch.set_grad_enabled(before["whether gradients are on"])
    torch.use_deterministic_algorithms(before["torch's deterministic mode"])
    torch.autograd.set_detect_anomaly(before["torch's anomaly mode"])
    torch.set_rng_state(kept)
    warnings.filters[:] = filters  # type: ignore[index]
    for name in os.environ.keys() - before["the environment"].keys():
        del os.environ[name]
    os.environ.update(before["the environment"])
    changed = [name for name, value in before.items() if after[name] != value]
    require(not changed, f"{what} changes {', '.join(changed)}")
    require(not said.getvalue(), f"{what} prints {said.getvalue()[:60]!r}")


@proves(
    "constructing and calling a part changes nothing that others see, and prints nothing",
    STREAM,
    ladder(((2,), (3, 0, 2)), Case(train=True)),
)
def no_trace(subject: Subject, case: Case) -> float:
    """Compare what is global before and after."""
    subject.chosen.entry.load()
    with untouched("its constructor"):
        subject.raw(case)
    bench, x = subject.bench(case), subject.tokens(case).requires_grad_()
    with untouched("a call"):
        y = subject.run(bench, x, case.lengths)
        backward(y.sum())
    return 0.0


@proves(
    "importing a part's module changes nothing, and prints nothing", KINDS, (Case(),), anywhere=True
)
def clean_import(subject: Subject, case: Case) -> float:
    """Import the module anew, and put the old one back."""
    name = (subject.part.target or "").partition(":")[0]
    subject.chosen.entry.load()
    old = sys.modules.pop(name)
    try:
        with untouched(f"importing {name}"):
            importlib.import_module(name)
    finally:
        sys.modules[name] = old
        parent, _, leaf = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], leaf, old)
    return 0.0


@proves(
    "what there is to choose is known without torch", KINDS, (Case(),), whole=True, anywhere=True
)
def torch_free_catalogue(subject: Subject, case: Case) -> float:
    """Import the module of the options in a process of its own."""
    name = subject.part.options.__module__
    if wrong := _imported(name):
        raise Broken(f"importing {name} {wrong}")
    return 0.0


@cache
def _imported(name: str) -> str:
    """Return what is wrong with importing a module in a new process, or nothing."""
    code = f"import sys, {name}; sys.exit(3 if 'torch' in sys.modules else 0)"
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 3:
        return "imports torch, 1.2 s for every --help and every TAB"
    if done.returncode or done.stdout or done.stderr:
        return f"fails or prints: {(done.stderr or done.stdout).strip()[-100:]!r}"
    return ""
