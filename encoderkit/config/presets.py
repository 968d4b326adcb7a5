"""The choices of every group: registered parts, and the YAML presets of all directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from encoderkit.api import KINDS, Options
from encoderkit.config.schema import SETTINGS
from encoderkit.errors import ConfigError, Fault
from encoderkit.registry import Entry, Owner, Registry

GROUPS = (*KINDS, "model", "train", "experiment")


def conf_dir() -> Path:
    """Return the directory of the built-in presets, in the package or beside it in a checkout."""
    here = Path(__file__).resolve().parent.parent
    return next(d for d in (here / "conf", here.parent / "conf") if (d / "config.yaml").is_file())


def defaults_of(options: type[Options]) -> dict[str, Any]:
    """Return the default of every field, `???` where there is none."""
    values: dict[str, Any] = {}
    for spec in fields(options):
        if spec.default_factory is not MISSING:
            values[spec.name] = spec.default_factory()
        else:
            values[spec.name] = "???" if spec.default is MISSING else spec.default
    return values


def node(entry: Entry) -> dict[str, Any]:
    """Return the configuration node of a part: its name and the defaults of its options."""
    return {"part": entry.part.name, **defaults_of(entry.part.options)}


@dataclass(frozen=True, slots=True)
class Source:
    """Where a choice comes from: a registered part, or a preset file."""

    owner: str
    of: Entry | Path

    def content(self) -> dict[str, Any]:
        """Return the values as they stand there; a preset's `defaults` are not followed."""
        if isinstance(self.of, Entry):
            return node(self.of)
        tree = OmegaConf.to_container(OmegaConf.load(self.of))
        return {str(key): value for key, value in tree.items()} if isinstance(tree, dict) else {}


class Presets:
    """All choices, by group and name."""

    def __init__(self, registry: Registry, config_dirs: Sequence[Path] = ()) -> None:
        self.registry = registry
        self.groups: dict[str, dict[str, Source]] = {group: {} for group in GROUPS}
        self._faults: list[Fault] = []
        for entry in registry:
            self._add(entry.part.kind, entry.part.name, Source(str(entry.owner), entry))
        shipped = [(Owner("encoderkit", "conf/"), conf_dir()), *registry.presets]
        self.directories = [directory for _, directory in shipped[1:]] + list(config_dirs)
        for owner, directory in [
            *shipped,
            *((Owner("--config-dir", str(d)), d) for d in config_dirs),
        ]:
            self._scan(owner, directory)
        if self._faults:
            raise ConfigError(self._faults)

    def _scan(self, owner: Owner, directory: Path) -> None:
        if not directory.is_dir():
            self._faults.append(Fault(str(owner), "there is no such directory.", "Check the path."))
            return
        for group in GROUPS:
            for file in sorted((directory / group).glob("*.yaml")):
                self._add(group, file.stem, Source(str(owner), file))

    def _add(self, group: str, name: str, source: Source) -> None:
        other = self.groups[group].setdefault(name, source)
        if other is not source:
            self._faults.append(
                Fault(
                    str(source.of),
                    f"the preset {group}={name} would shadow the one of {other.owner}.",
                    f"Rename the file to {group}/my_{name}.yaml, then choose {group}=my_{name}.",
                )
            )

    def default(self, group: str) -> str:
        """Return the default choice of a group, as conf/config.yaml names it."""
        for item in OmegaConf.load(conf_dir() / "config.yaml").defaults:
            if not isinstance(item, str) and group in item:
                return str(item[group])
        raise KeyError(group)  # a test pins that every group has its default

    def read(self, group: str, name: str) -> dict[str, Any]:
        """Return the values of a choice: its base's, then its own.

        The presets read here use two words of Hydra's defaults list, a base in the same group and
        `_self_`; a test pins that Hydra composes the same values.
        """
        own = self.groups[group][name].content()
        bases = own.pop("defaults", [])
        values: dict[str, Any] = defaults_of(SETTINGS[group]) if group in SETTINGS else {}
        for base in bases:
            values |= own if base == "_self_" else self.read(group, str(base))
        return values | own
