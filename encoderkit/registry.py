"""Every part that is loaded, by kind and name, with the distribution that owns it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encoderkit.api import KINDS, Part
from encoderkit.errors import PluginError


@dataclass(frozen=True, slots=True)
class Owner:
    """The distribution that a plugin came with."""

    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A part in the registry."""

    part: Part
    owner: Owner

    def load(self) -> Any:
        """Import and return the part's class.

        Errors: PluginError when the target cannot be imported.
        """
        module, _, attribute = (self.part.target or "").partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except Exception as error:
            raise PluginError(
                f"{self.part.kind}={self.part.name} ({self.owner}): "
                f"{self.part.target} cannot be loaded: {type(error).__name__}: {error}"
            ) from error

    def source_hash(self) -> str:
        """Return 12 hex digits of the SHA-256 of the file that the part's code stands in."""
        spec = importlib.util.find_spec((self.part.target or "").partition(":")[0] or "encoderkit")
        if spec is None or spec.origin is None:
            return ""
        return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Problem:
    """A plugin, or a part of one, that was left out, and why."""

    plugin: str
    owner: Owner
    stage: str
    cause: str

    def __str__(self) -> str:
        return f"plugin {self.plugin} ({self.owner}) failed at {self.stage}: {self.cause}"


@dataclass(slots=True)
class Registry:
    """Parts by (kind, name); preset directories by owner; plugins that were left out."""

    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
    presets: list[tuple[Owner, Path]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def names(self, kind: str) -> list[str]:
        """Return the names of all parts of one kind, in the order they were added."""
        return [name for k, name in self.entries if k == kind]

    def __iter__(self) -> Iterator[Entry]:
        """Yield all parts, kind by kind."""
        return iter(sorted(self.entries.values(), key=lambda e: KINDS.index(e.part.kind)))
