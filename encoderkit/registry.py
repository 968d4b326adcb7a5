"""Every part that is loaded, by kind and name, with the distribution that owns it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from encoderkit.ambient import unchanged
from encoderkit.api import KINDS, Part
from encoderkit.errors import Fault, PluginError, nearest

GROUPS = (*KINDS, "model", "train", "experiment")
NOT_TEXT = ("true", "false", "null", "nan", "inf")  # what an override reads as something else
Choice = tuple[str, str]  # a group and a name in it: norm, rmsnorm
# Modules of parts whose import changed the process's state, and how: it happens only once.
_REFUSED: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()
NAME_RULE = f"a name is lower-case letters, digits and underscores, none of {', '.join(NOT_TEXT)}"
_PART = re.compile(r"[a-z][a-z0-9_]*")
_PRESET = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Owner:
    """The distribution that a plugin came with."""

    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"

    def qualified(self, name: str) -> str:
        """Return distribution/name, with the distribution as package indexes spell it."""
        return f"{re.sub(r'[-_.]+', '-', self.distribution).lower()}/{name}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A part in the registry."""

    part: Part
    owner: Owner

    def load(self) -> Any:
        """Import and return the part's class.

        Errors: PluginError when the target cannot be imported, or changes the process's state.
        """
        name, _, attribute = (self.part.target or "").partition(":")
        where = f"{self.part.kind}={self.part.name} ({self.owner}): {self.part.target}"
        known = sys.modules.get(name)
        trusted = known is not None or self.owner.distribution == "encoderkit"
        try:
            if known and known in _REFUSED:
                raise PluginError(_REFUSED[known])
            with nullcontext() if trusted else unchanged(name.partition(".")[0]):
                module = importlib.import_module(name)
            return getattr(module, attribute)
        except PluginError as error:
            if name in sys.modules:
                _REFUSED[sys.modules[name]] = str(error)
            raise PluginError(f"{where} cannot be loaded: {error}") from error
        except (Exception, SystemExit) as error:
            cause = f"{type(error).__name__}: {error}"
            raise PluginError(f"{where} cannot be loaded: {cause}") from error

    def source_hash(self) -> str:
        """Return 12 hex digits of the SHA-256 of the file that the part's code stands in."""
        spec = importlib.util.find_spec((self.part.target or "").partition(":")[0] or "encoderkit")
        if spec is None or spec.origin is None:
            return ""
        return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Problem:
    """A plugin that was left out, and why; `choices` is what it has, once that is known."""

    plugin: str
    owner: Owner
    stage: str
    cause: str
    choices: frozenset[Choice] | None = None

    def __str__(self) -> str:
        return f"plugin {self.plugin} ({self.owner}) failed at {self.stage}: {self.cause}"


@dataclass(frozen=True, slots=True)
class Clash:
    """A name that several packages give to a choice of one group; no order decides whose it is."""

    group: str
    name: str
    owners: tuple[Owner, ...]
    built_in: bool  # the plain name stays the built-in's, and `owners` are the others

    @property
    def whose(self) -> str:
        """The packages that have the name."""
        return " and ".join(map(str, self.owners))

    @property
    def advice(self) -> str:
        """What to type for each."""
        typed = [f"{self.group}={owner.qualified(self.name)}" for owner in self.owners]
        return f"Type {' or '.join(typed)}."

    def __str__(self) -> str:
        stays = ", and stays the name of the built-in" if self.built_in else ""
        return f"{self.group}={self.name} is a name of {self.whose}{stays}. {self.advice}"


@dataclass(slots=True)
class Registry:
    """Parts by (kind, name); preset directories by owner; plugins that were left out; clashes."""

    entries: dict[Choice, Entry] = field(default_factory=dict)
    presets: list[tuple[Owner, Path]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    clashes: dict[Choice, Clash] = field(default_factory=dict)

    def named(self, owner: Owner, group: str, name: str) -> str:
        """Return what to type for an owner's choice: its name, or distribution/name in a clash."""
        clash = self.clashes.get((group, name))
        return owner.qualified(name) if clash and owner in clash.owners else name

    def names(self, kind: str) -> list[str]:
        """Return the names of all parts of one kind, in the order they were added."""
        return [name for k, name in self.entries if k == kind]

    def __iter__(self) -> Iterator[Entry]:
        """Yield all parts, kind by kind."""
        return iter(sorted(self.entries.values(), key=lambda e: KINDS.index(e.part.kind)))


def is_part_name(text: str) -> bool:
    """Tell whether a part may have this name."""
    return bool(_PART.fullmatch(text)) and text not in NOT_TEXT


def conf_dir() -> Path:
    """Return the directory of the built-in presets, in the package or beside it in a checkout."""
    here = Path(__file__).resolve().parent
    return next(d for d in (here / "conf", here.parent / "conf") if (d / "config.yaml").is_file())


def preset_files(directory: Path) -> tuple[list[tuple[str, str, Path]], list[Fault]]:
    """Return the presets of a directory as (group, name, file), and what has no place in it."""
    try:
        folders = sorted(item for item in directory.iterdir() if item.is_dir())
        files = {folder: sorted(folder.glob("*.y*ml")) for folder in folders}
    except OSError as error:
        problem = "there is no such directory." if not directory.is_dir() else f"{error.strerror}."
        return [], [Fault(str(directory), problem, "Check the path.")]
    found: list[tuple[str, str, Path]] = []
    faults = []
    if (directory / "config.yaml").is_file() and directory != conf_dir():
        hint = "Make it an experiment: experiment/NAME.yaml."
        faults.append(Fault(str(directory / "config.yaml"), "is never read.", hint))
    for folder in folders:
        if folder.name == "hydra":
            faults.append(Fault(str(folder), "presets configure parts, never Hydra.", "Remove it."))
        elif folder.name not in GROUPS and files[folder] and (hint := nearest(folder.name, GROUPS)):
            faults.append(Fault(str(folder), "is no group of presets.", hint))
        for file in files[folder] if folder.name in GROUPS else ():
            usable = _PRESET.fullmatch(file.stem) and file.stem.lower() not in NOT_TEXT
            if usable and file.suffix == ".yaml":
                found.append((folder.name, file.stem, file))
            else:
                problem = "a preset is a letter, then letters, digits, '_', '-', '.', with .yaml."
                faults.append(Fault(str(file), problem, "Rename it."))
    return found, faults
