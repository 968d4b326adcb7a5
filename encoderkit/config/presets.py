"""The choices of every group: registered parts, and the YAML presets of all directories."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError

from encoderkit.api import KINDS, Options
from encoderkit.config.check import unknown_choice
from encoderkit.config.overrides import leaves
from encoderkit.config.schema import SETTINGS
from encoderkit.config.text import require_small
from encoderkit.errors import ConfigError, Fault, nearest
from encoderkit.registry import GROUPS, Entry, Registry, conf_dir, preset_files


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


Naming = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a choice comes from: a registered part, or a preset file.

    `naming` is what the names of a group, in a plugin's preset, are called here.
    """

    owner: str
    of: Entry | Path
    naming: Naming | None = None

    def with_bases_named(self, group: str, tree: dict[str, Any]) -> dict[str, Any]:
        """Return a plugin's preset in which its own choices have the names they have here."""
        bases = tree.get("defaults")
        if self.naming is None or not isinstance(bases, list) or not isinstance(self.of, Path):
            return tree
        own = self.of.stem  # never the base of itself, so then it is the built-in that is meant
        named: list[Any] = []
        for item in bases:
            if isinstance(item, dict):
                named.append({k: self._override(str(k), value) for k, value in item.items()})
            else:
                named.append(item if item == own else self.naming(group, str(item)))
        return tree | {"defaults": named}

    def _override(self, key: str, value: Any) -> Any:
        """Return what an experiment's `override /group: value` chooses."""
        group = key.removeprefix("override /")
        return self.naming(group, value) if self.naming and isinstance(value, str) else value

    def content(self) -> dict[str, Any]:
        """Return the values as they stand there; a preset's `defaults` are not followed.

        Errors: ConfigError when a file cannot be read.
        """
        if isinstance(self.of, Entry):
            return node(self.of)
        try:
            require_small(self.of.read_bytes())
            tree = OmegaConf.to_container(OmegaConf.load(self.of))
        except Exception as error:  # yaml's, OmegaConf's, the file system's, RecursionError
            cause = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError([Fault(str(self.of), f"cannot be read: {cause}.")]) from error
        if not isinstance(tree, dict):
            raise ConfigError([Fault(str(self.of), "must be a mapping of values.")])
        group = self.of.parent.name
        return self.with_bases_named(group, {str(key): value for key, value in tree.items()})


class Presets:
    """All choices, by group and name."""

    def __init__(self, registry: Registry, config_dirs: Sequence[Path] = ()) -> None:
        self.registry = registry
        self.groups: dict[str, dict[str, Source]] = {group: {} for group in GROUPS}
        self._faults: list[Fault] = []
        self._found: dict[tuple[str, str], list[Fault]] = {}
        self._values: dict[tuple[str, str], dict[str, Any]] = {}
        self._defaults: dict[str, str] = {}
        for entry in registry:
            self._add(entry.part.kind, entry.part.name, Source(str(entry.owner), entry))
        self.directories = list(config_dirs)
        self._scan("encoderkit conf/", conf_dir())
        for owner, directory in registry.presets:
            self._scan(str(owner), directory, partial(registry.named, owner))
        for directory in config_dirs:
            self._scan(f"--config-dir {directory}", directory)
        if self._faults:
            raise ConfigError(self._faults)

    def _scan(self, owner: str, directory: Path, naming: Naming | None = None) -> None:
        files, faults = preset_files(directory)
        for group, name, file in files:
            choice = naming(group, name) if naming else name
            self._add(group, choice, Source(owner, file, naming))
        self._faults += [
            replace(fault, where=owner) if fault.where == str(directory) else fault
            for fault in faults
        ]

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

    def unknown(self, group: str, name: Any) -> Fault:
        """Return the fault of a name that is no choice of a group."""
        fault = unknown_choice(group, name, list(self.groups[group]), self.registry)
        word = isinstance(name, str) and name.isidentifier()
        if fault.problem.startswith("must be") and word and not (fault.hint or self.directories):
            return replace(fault, hint="A preset of your own needs --config-dir DIR.")
        return fault

    def published(self) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
        """Yield what Hydra finds in no directory: parts and plugins' presets, as it stores them.

        Each is (folder, name, package, values). A preset that cannot be read is left out here;
        `faults` says so when it is chosen.
        """
        for group, sources in self.groups.items():
            package = "_global_" if group == "experiment" else group
            for name, source in sources.items():
                if isinstance(source.of, Entry) or source.naming:
                    folder, _, last = f"{group}/{name}".rpartition("/")
                    with suppress(ConfigError):
                        yield folder, last, package, _for_hydra(group, source.content())

    def require_small(self) -> None:
        """Refuse files of others that say more than a preset can, before Hydra reads them.

        Errors: ConfigError.
        """
        ours = conf_dir()
        for sources in self.groups.values():
            for each in sources.values():
                if isinstance(each.of, Path) and not each.of.is_relative_to(ours):
                    with suppress(OSError, YAMLError):  # those have words of their own, if chosen
                        try:
                            require_small(each.of.read_bytes())
                        except ValueError as error:
                            raise ConfigError([Fault(str(each.of), f"{error}.")]) from error

    def clash_in(self, error: str) -> str:
        """Return the clash that makes Hydra miss a choice, if that is what an error says."""
        clashes = self.registry.clashes.items()
        return next((str(clash) for key, clash in clashes if f"'{'/'.join(key)}'" in error), "")

    def faults(self, group: str, name: str) -> list[Fault]:
        """Return what is wrong with the file behind a choice, and with the files it is based on.

        A preset has one base, and then its own values; an experiment is left to Hydra.
        """
        if (group, name) not in self._found:
            self._found[group, name] = self._examine(group, name)
        return self._found[group, name]

    def _examine(self, group: str, name: str) -> list[Fault]:
        seen: list[str] = []
        while isinstance(file := self.groups[group][name].of, Path):
            seen.append(name)
            try:
                own = self.groups[group][name].content()
                text = file.read_text("utf-8")
            except ConfigError as error:
                return list(error.faults)
            wrong = _form(group, own, text)
            bases = own.get("defaults", [])
            if wrong or group == "experiment" or not bases:
                return [Fault(str(file), *wrong)] if wrong else []
            name = bases[0]
            if name not in self.groups[group]:
                hint = nearest(name, self.groups[group])
                return [Fault(str(file), f"its base {group}={name} does not exist.", hint)]
            if name in seen:
                chain = " -> ".join([*seen, name])
                return [Fault(str(file), f"is based on itself: {chain}.", "Name a part as base.")]
        return []

    def default(self, group: str) -> str:
        """Return the default choice of a group, as conf/config.yaml names it."""
        if not self._defaults:
            chosen = OmegaConf.load(conf_dir() / "config.yaml").defaults
            named = [item for item in chosen if not isinstance(item, str)]
            self._defaults = {str(key): str(name) for item in named for key, name in item.items()}
        return self._defaults[group]  # a test pins that every group has its default

    def read(self, group: str, name: str) -> dict[str, Any]:
        """Return the values of a choice: its base's, then its own.

        The presets read here use two words of Hydra's defaults list, a base in the same group and
        `_self_`; a test pins that Hydra composes the same values.
        """
        if (group, name) not in self._values:
            own = self.groups[group][name].content()
            bases = own.pop("defaults", [])
            usual = defaults_of(SETTINGS[group]) if group in SETTINGS else {}
            self._values[group, name] = (self.read(group, bases[0]) if bases else usual) | own
        return copy.deepcopy(self._values[group, name])

    def opened(self, model: Any) -> Any:
        """Return the model's node with the presets opened that stand for parts inside it.

        What is no preset, or has another form, stays as it is: `check` names what is wrong there.
        """
        if not isinstance(model, Mapping):
            return model
        rules = model.get("layers", [])
        layers = [
            {key: self._opened(str(key), value) for key, value in rule.items()}
            if isinstance(rule, Mapping)
            else rule
            for rule in (rules if isinstance(rules, list | tuple) else [])
        ]
        found = {**model, "layers": layers} if isinstance(rules, list | tuple) else dict(model)
        if "embed_norm" in model:
            found["embed_norm"] = self._opened("norm", model["embed_norm"])
        return found

    def _opened(self, kind: str, node: Any) -> Any:
        """Return a choice, or a mapping with `part`, with the values of the preset it names."""
        given = dict(node) if isinstance(node, Mapping) else {"part": node}
        name = given.pop("part", None)
        source = self.groups.get(kind, {}).get(name) if isinstance(name, str) else None
        if source is None or isinstance(source.of, Entry) or self.faults(kind, str(name)):
            return node
        return self.read(kind, str(name)) | given


def _for_hydra(group: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return a preset whose bases Hydra finds from anywhere: below pkg-a/ it would look there."""
    bases = values.get("defaults")
    if group == "experiment" or not isinstance(bases, list):
        return values
    found = [b if b == "_self_" else f"/{group}/{b}@_here_" for b in bases]
    return values | {"defaults": found}


def _form(group: str, own: dict[str, Any], text: str) -> tuple[str, str] | None:
    """Return what is wrong with the form of a preset file, and what to write instead."""
    package = re.search(r"^\s*#\s*@package\s+(\S+)", text, re.MULTILINE)
    missing = [key for key, value in leaves(own) if value == "???"]
    if missing:
        return f"{missing[0]}: ??? says nothing.", "Write a value, or remove the line."
    if group == "experiment":
        if package is None or package[1] != "_global_":
            return "an experiment sets any group.", "Begin it with the line `# @package _global_`."
        return None
    if package is not None:
        return f"a preset sets values of its own group, {group}.", "Remove the line with @package."
    base = "PART" if group in KINDS else "PRESET"
    hint = f"Begin it with `defaults: [{base}, _self_]`."
    bases = own.get("defaults", [])
    named = isinstance(bases, list) and all(isinstance(item, str) for item in bases)
    if not named or (bases and (bases[0] == "_self_" or bases[1:] not in ([], ["_self_"]))):
        return "its defaults must be one base, and then its own values.", hint
    if group in KINDS and not bases:
        return "names no part as its base.", hint
    if "part" in own:
        return "its part is that of its base, and cannot be set.", hint
    return None
