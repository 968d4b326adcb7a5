"""Override strings to a `Config`, by Hydra's grammar and composition; no other file knows Hydra."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from encoderkit.api import KINDS
from encoderkit.config.check import (
    SCHEMA,
    SEEDS,
    code_faults,
    inspect,
    plain,
    show,
    unknown_choice,
)
from encoderkit.config.presets import GROUPS, Presets, conf_dir, defaults_of, node
from encoderkit.config.schema import SETTINGS, Config
from encoderkit.errors import ConfigError, Fault, nearest
from encoderkit.registry import Entry, Registry

SHORT = {"seeds": "sweep.seeds", "jobs": "sweep.jobs"}
TEXTS = ("sweep.baseline", "sweep.dir")  # may hold '=', which Hydra takes in quotes only
VERSION_BASE = "1.3" if hydra.__version__ < "1.4" else None


@dataclass(frozen=True, slots=True)
class Origin:
    """A resolved leaf and where its value was said last."""

    path: str
    value: Any
    source: str


class _Groups:
    """What Hydra's glob asks for: the choices of a group."""

    def __init__(self, presets: Presets) -> None:
        self._presets = presets

    def get_group_options(
        self, group_name: str, results_filter: ObjectType | None = None, **_: Any
    ) -> list[str]:
        return list(self._presets.groups.get(group_name, {}))


class Composer:
    """A Hydra session for many requests; a Hydra application around it stays as it was."""

    def __init__(self, registry: Registry, config_dirs: Sequence[Path] = ()) -> None:
        self.registry = registry
        self.presets = Presets(registry, config_dirs)
        self._parser = OverridesParser.create(config_loader=_Groups(self.presets))  # type: ignore[arg-type]
        self._trees: dict[tuple[str, ...], DictConfig] = {}
        self._session = _hydra_session(self.presets)

    def __enter__(self) -> Composer:
        self._session.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._session.__exit__(*error)

    def configure(self, overrides: Sequence[str]) -> Config:
        """Return the checked configuration of one point.

        Errors: ConfigError with every fault of the overrides and of the values they lead to.
        """
        parsed, faults = self._parse(overrides)
        faults += [_not_here(item) for item in parsed if item.is_sweep_override()]
        points = [item for item in parsed if not item.is_sweep_override()]
        lost = {item.key_or_group for item in parsed if item.is_sweep_override()}
        tree, more = self._tree(points, lost)
        faults += more
        config, wrong = inspect(tree, self.registry)
        faults += [f for f in wrong if f.group not in lost]
        if faults or config is None:
            raise ConfigError(list(dict.fromkeys(faults)))
        return config

    def expand(self, overrides: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the grid that the overrides span, one tuple of plain overrides for each point.

        Axes come from the overrides (`norm=layernorm,rmsnorm`, `choice`, `range`, `glob`) and from
        `hydra.sweeper.params` of a chosen experiment.

        Errors: ConfigError with every override that is malformed or spans nothing.
        """
        parsed, faults = self._parse(self._with_experiment(overrides))
        columns: list[list[str]] = []
        for item in parsed:
            values = self._values(item, faults)
            columns.append([f"{item.key_or_group}={value}" for value in values])
        if faults:  # then those of the values that stand alone belong in the same message
            try:
                self.configure([i.input_line or "" for i in parsed if not i.is_sweep_override()])
            except ConfigError as error:
                faults += [fault for fault in error.faults if fault not in faults]
            raise ConfigError(faults)
        return [tuple(dict.fromkeys(point)) for point in itertools.product(*columns)]

    def axes(self, overrides: Sequence[str]) -> list[str]:
        """Return the keys that vary in the grid, in the order they were given."""
        parsed, _ = self._parse(self._with_experiment(overrides))
        return [item.key_or_group for item in parsed if item.is_sweep_override()]

    def origins(self, overrides: Sequence[str]) -> list[Origin]:
        """Return every leaf of a request's resolved configuration with the place that set it."""
        leaves = dict(_leaves(plain(self.configure(overrides))))
        parsed, _ = self._parse(overrides)
        sources = dict.fromkeys(leaves, "default")
        sources |= self._file_origins([i.input_line or "" for i in parsed if _is_group(i)])
        sources |= {i.key_or_group: "command line" for i in parsed if not _is_group(i)}
        sources |= {f"{i.key_or_group}.part": "command line" for i in parsed if _is_group(i)}
        return [Origin(path, value, sources[path]) for path, value in leaves.items()]

    def _parse(self, overrides: Sequence[str]) -> tuple[list[Override], list[Fault]]:
        """Return the well-formed overrides and a fault for each of the others."""
        parsed: list[Override] = []
        faults: list[Fault] = []
        for text in overrides:
            key, equals, value = text.partition("=")
            if key in TEXTS and "=" in value and value[:1] not in "'\"":
                value = "'" + value.replace("'", "\\'") + "'"
            try:
                (item,) = self._parser.parse_overrides([f"{SHORT.get(key, key)}{equals}{value}"])
            except HydraException as error:
                cause = " ".join(str(error).split())
                faults.append(Fault(text, f"is no override ({cause}).", "Write key=value."))
                continue
            fault = self._form_fault(item)
            parsed += [] if fault else [item]
            faults += [fault] if fault else []
        return parsed, faults

    def _form_fault(self, item: Override) -> Fault | None:
        """Return what is wrong with an override's form or choice."""
        key = item.key_or_group
        line = item.input_line or key
        if item.is_add() or item.is_force_add():
            bare = line.lstrip("+")
            problem = "'+' would add a key, and only keys that a part declares have an effect."
            known = self._known_keys(key)
            hint = f"Type {bare}." if key in known else nearest(key, known)
            return Fault(line, problem, hint or "`encoderkit show` lists the keys.")
        if item.is_delete():
            return Fault(line, "nothing can be deleted.", "Choose `none` where a kind has it.")
        if item.package is not None or item.is_hydra_override():
            problem = "packages and hydra.* belong to `encoderkit train -m` alone."
            return Fault(line, problem, "Remove it.")
        if key.endswith(".part"):
            kind = key.removesuffix(".part")
            return Fault(line, "is read-only.", f"Choose with {kind}={show(item.value())}.")
        if item.is_sweep_override():
            return None
        if code := code_faults({key: item.value()}):
            return code[0]
        if _is_group(item):
            known = list(self.presets.groups[key])
            if item.value() not in known:
                return unknown_choice(key, item.value(), known, self.registry)
        return None

    def _known_keys(self, key: str) -> list[str]:
        """Return every key that could stand where `key` stands."""
        group = key.partition(".")[0]
        options = [e.part.options for e in self.registry if e.part.kind == group]
        options += [SETTINGS[group]] if group in SETTINGS else []
        return [f"{group}.{name}" for o in options for name in defaults_of(o)] + list(GROUPS)

    def _values(self, item: Override, faults: list[Fault]) -> list[str]:
        """Return the values of an override as text; a value that does not vary is one."""
        line = item.input_line or ""
        if not item.is_sweep_override():
            return [line.partition("=")[2]]
        if item.is_interval_sweep():
            faults.append(Fault(line, "an interval has no points.", "Use range(start,stop,step)."))
            return []
        values = list(dict.fromkeys(item.sweep_string_iterator()))
        if not values:
            known = ", ".join(self.presets.groups.get(item.key_or_group, {}))
            faults.append(Fault(line, "matches nothing.", f"There are {known}." if known else ""))
        if _is_group(item):
            known_choices = list(self.presets.groups[item.key_or_group])
            for value in values:
                if value not in known_choices:
                    faults.append(
                        unknown_choice(item.key_or_group, value, known_choices, self.registry)
                    )
        return values

    def _with_experiment(self, overrides: Sequence[str]) -> list[str]:
        """Return the overrides with the axes of their experiment before them."""
        names = [text for text in overrides if text.startswith("experiment=")]
        if not names or self._parse(names)[1]:
            return list(overrides)
        whole = self._compose(tuple(names), hydra_too=True)
        params = OmegaConf.to_container(whole.hydra.sweeper.get("params") or OmegaConf.create())
        given = {SHORT.get(key, key) for key in (text.partition("=")[0] for text in overrides)}
        axes = params.items() if isinstance(params, Mapping) else ()
        found = [f"{str(key)}={show(value)}" for key, value in axes]
        return [t for t in found if SHORT.get(k := t.partition("=")[0], k) not in given] + list(
            overrides
        )

    def _tree(
        self, items: Sequence[Override], lost: set[str]
    ) -> tuple[dict[str, Any], list[Fault]]:
        """Return the merged and resolved tree of well-formed overrides, with what went wrong."""
        groups = tuple(sorted(item.input_line or "" for item in items if _is_group(item)))
        if groups not in self._trees:
            self._trees[groups] = self._compose(groups)
        tree = self._trees[groups].copy()
        OmegaConf.set_struct(tree, False)
        faults: list[Fault] = []
        for item in items:
            if _is_group(item) or item.key_or_group.partition(".")[0] in lost:
                continue
            try:
                OmegaConf.update(tree, item.key_or_group, item.value(), force_add=True)
            except OmegaConfBaseException as error:
                faults.append(Fault(item.input_line or "", " ".join(str(error).split())))
        try:
            whole = OmegaConf.to_container(tree, resolve=True)
        except OmegaConfBaseException as error:
            where = str(getattr(error, "full_key", "") or "interpolation")
            raise ConfigError([*faults, Fault(where, " ".join(str(error).split()))]) from error
        return {str(key): value for key, value in dict(whole).items()}, faults  # type: ignore[arg-type]

    def _compose(self, groups: tuple[str, ...], hydra_too: bool = False) -> DictConfig:
        try:
            return hydra.compose(
                "config", [*self._search_path(), *groups], return_hydra_config=hydra_too
            )
        except (HydraException, OmegaConfBaseException) as error:
            cause = " ".join(str(error).split())
            raise ConfigError([Fault(" ".join(groups) or "conf", cause)]) from error

    def _search_path(self) -> list[str]:
        extra = ",".join(f"'file://{path.resolve()}'" for path in self.presets.directories)
        return [f"hydra.searchpath=[{extra}]"] if extra else []

    def _file_origins(self, groups: list[str]) -> dict[str, str]:
        """Return, for every leaf that a file or a part sets, the last one that does."""
        loader = GlobalHydra.instance().config_loader()
        found = loader.compute_defaults_list("config", [*self._search_path(), *groups], RunMode.RUN)
        origins: dict[str, str] = {}
        for item in found.defaults:
            path = item.config_path or ""
            group, _, name = path.partition("/")
            source = self.presets.groups.get(group, {}).get(name)
            if source is None:
                continue
            part = isinstance(source.of, Entry)
            label = f"{path} ({source.owner})" if part else f"{path}.yaml ({source.owner})"
            prefix = f"{item.package}." if item.package else ""
            for leaf, _ in _leaves(source.content()):
                origins[prefix + leaf] = label
        choices = found.overrides.known_choices
        experiment = choices["experiment"]
        for kind in KINDS:
            usual = choices[kind] == self.presets.default(kind)
            origins[f"{kind}.part"] = "config.yaml" if usual else f"experiment={experiment}"
        return origins


def _is_group(item: Override) -> bool:
    return item.key_or_group in GROUPS


def _not_here(item: Override) -> Fault:
    """Return the fault of an axis where one point is asked for."""
    line = item.input_line or ""
    key, _, value = line.partition("=")
    hint = "Sweep over it with `encoderkit sweep`, or `encoderkit train -m`."
    if item.value_type == ValueType.SIMPLE_CHOICE_SWEEP:
        hint += f" A list is {key}=[{value}], a text with a comma {key}='{value}'."
    return Fault(line, "is several values, and one is wanted.", hint)


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, tree


def publish(registry: Registry) -> None:
    """Put one node for each part, and the settings' defaults, where Hydra finds them."""
    store = ConfigStore.instance()
    for entry in registry:
        store.store(group=entry.part.kind, name=entry.part.name, node=node(entry))
    settings = {group: defaults_of(options) for group, options in SETTINGS.items()}
    seeds = dict(zip(SEEDS, (0, "${seed}", "${seed}"), strict=True))
    store.store(name="schema", node={"schema": SCHEMA, **settings, **seeds})


@contextmanager
def _hydra_session(presets: Presets) -> Iterator[None]:
    """Start Hydra on our directories; afterwards its global state is as it was."""
    held = GlobalHydra.instance().hydra
    versions = VersionBase.instance()
    base = versions.getbase()
    store = ConfigStore.instance()
    nodes = store.repo
    store.repo = {key: value for key, value in nodes.items() if key not in KINDS}
    publish(presets.registry)
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
            yield
    finally:
        store.repo = nodes
        GlobalHydra.instance().hydra = held
        if base is not None and type(base) is type(versions.getbase()):  # somebody had set it
            versions.setbase(base)
