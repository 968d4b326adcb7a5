"""What belongs to the whole process; a plugin's import that changes it is undone and refused."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

from encoderkit.errors import PluginError

ARITHMETIC = ("torch", "numpy")  # what they set up at their first import is nobody's change


@dataclass(frozen=True, slots=True)
class _Setting:
    """Something that a module holds for everybody; it is looked at once the module is imported."""

    name: str
    module: str
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], Any]


def _read_numpy(numpy_random: Any) -> Any:
    name, keys, *rest = numpy_random.get_state()
    return (name, keys.tolist(), *rest)


def _write_filters(filters: Any) -> None:
    warnings.resetwarnings()  # tells the interpreter that its notes of earlier warnings are void
    warnings.filters[:] = filters  # type: ignore[index]


FILTERS = "the warnings filters"
SETTINGS = (
    _Setting(
        "torch's default dtype",
        "torch",
        lambda torch: torch.get_default_dtype(),
        lambda torch, value: torch.set_default_dtype(value),
    ),
    _Setting(
        "torch's default device",
        "torch",
        lambda torch: str(torch.get_default_device()),
        lambda torch, value: torch.set_default_device(None if value == "cpu" else value),
    ),
    _Setting(
        "torch's threads",
        "torch",
        lambda torch: torch.get_num_threads(),
        lambda torch, value: torch.set_num_threads(value),
    ),
    _Setting(
        "torch's gradient mode",
        "torch",
        lambda torch: torch.is_grad_enabled(),
        lambda torch, value: torch.set_grad_enabled(value),
    ),
    _Setting(
        "torch's random numbers",
        "torch",
        lambda torch: tuple(torch.get_rng_state().tolist()),
        lambda torch, value: torch.set_rng_state(
            torch.tensor(value, dtype=torch.uint8, device="cpu")
        ),
    ),
    _Setting("numpy's random numbers", "numpy.random", _read_numpy, lambda m, v: m.set_state(v)),
    _Setting(
        "Python's random numbers",
        "random",
        lambda _: random.getstate(),
        lambda _, value: random.setstate(value),
    ),
    _Setting(
        "the working directory",
        "os",
        lambda _: os.getcwd(),
        lambda _, value: os.chdir(value),
    ),
    _Setting(
        FILTERS,
        "warnings",
        lambda _: list(warnings.filters),
        lambda _, value: _write_filters(value),
    ),
)

State = dict[str, Any]
T = TypeVar("T")


def _state() -> State:
    """Return every setting by name, and every variable of the environment by `$NAME`."""
    found: State = {}
    for setting in SETTINGS:
        module = sys.modules.get(setting.module)
        with contextlib.suppress(AttributeError, OSError):  # half imported; a directory gone
            if module is not None:
                found[setting.name] = setting.read(module)
    return found | {f"${name}": value for name, value in os.environ.items()}


def _different(before: State, after: State) -> list[str]:
    """Return the names of what is not the same, or not there, in one of two states."""
    names = dict.fromkeys([*before, *after])
    return [n for n in names if n not in before or n not in after or before[n] != after[n]]


@contextlib.contextmanager
def unchanged(package: str) -> Iterator[None]:
    """Undo what the code of a package changes for the whole process, and refuse it.

    What another thread changes at that moment cannot be told from it.

    Errors: PluginError with each change, before -> after.
    """
    imports = _FirstImports(package, _state())
    sys.meta_path.insert(0, imports)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(imports)
        changes = _put_back(imports.kept)
    if changes:
        raise PluginError(f"it changed, for the whole process, {'; '.join(changes)}")


def _put_back(kept: State) -> list[str]:
    """Make the state what it was, and return each change in words."""
    now = _state()
    changed = [n for n in _different(kept, now) if n.startswith("$") or n in kept]
    for name in changed:
        if not name.startswith("$"):
            setting = next(s for s in SETTINGS if s.name == name)
            setting.write(sys.modules[setting.module], kept[name])
        elif name in kept:
            os.environ[name[1:]] = kept[name]
        else:
            del os.environ[name[1:]]
    return [f"{name}: {_shown(name, kept)} -> {_shown(name, now)}" for name in changed]


def _shown(name: str, state: State) -> str:
    """Return a value in at most 40 characters; the numbers to come by 8 digits of their hash."""
    if name not in state:
        return "not set"
    value = state[name]
    if name == FILTERS:
        first = f", first {value[0][0]} {value[0][2].__name__}" if value else ""
        return f"{len(value)}{first}"
    if isinstance(value, tuple):
        return hashlib.sha256(repr(value).encode()).hexdigest()[:8]
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


class _FirstImports:
    """Takes what other packages set up, when they are first imported, into the state to keep.

    torch and numpy may set up anything; others, filters and variables alone.
    """

    def __init__(self, package: str, kept: State) -> None:
        self.kept = kept
        self._package = package
        self._busy = False  # what looking itself imports is not looked at
        self._running: list[str] = []  # the packages whose import is under way

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is, as Python's own finders say, with an eye on its import."""
        top = name.partition(".")[0]
        again = self._running and top not in ARITHMETIC
        if self._busy or again or top == self._package or {*self._running} & {*ARITHMETIC}:
            return None
        spec = self._alone(lambda: importlib.util.find_spec(name))
        loader = spec.loader if spec else None
        if loader is not None and not isinstance(loader, type):  # types: Python's own, frozen
            self._watch(loader, top)
        return spec

    def _watch(self, loader: Any, top: str) -> None:
        run = loader.exec_module

        def watched(module: ModuleType) -> None:
            del loader.exec_module
            before = self._alone(_state)
            self._running.append(top)
            try:
                run(module)
            finally:
                self._running.pop()
                after = self._alone(_state)
                for name in _different(before, after):
                    if top in ARITHMETIC or name == FILTERS or name.startswith("$"):
                        self._take(name, after)

        loader.exec_module = watched

    def _alone(self, look: Callable[[], T]) -> T:
        self._busy = True
        try:
            return look()
        finally:
            self._busy = False

    def _take(self, name: str, state: State) -> None:
        if name in state:
            self.kept[name] = state[name]
        else:
            self.kept.pop(name, None)
