"""Override strings to a `Config`, by Hydra's grammar; launch.py alone knows Hydra besides."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from encoderkit.api import KINDS
from encoderkit.config.check import (
    SCHEMA,
    SEEDS,
    SHORT,
    inspect,
    plain,
    show,
)
from encoderkit.config.live import spoken
from encoderkit.config.overrides import (
    Origin,
    cause,
    leaves,
    quoted,
    resolved,
    several,
    without_environment,
)
from encoderkit.config.presets import Presets, defaults_of
from encoderkit.config.schema import SETTINGS, Config
from encoderkit.config.words import Words, is_group, is_listed
from encoderkit.errors import ConfigError, Fault
from encoderkit.registry import GROUPS, Entry, Registry, conf_dir

_ONE_AT_A_TIME = threading.RLock()  # Hydra's state is global; threads take turns
VERSION_BASE = "1.3" if hydra.__version__ < "1.4" else None


class Composer:
    """A Hydra session for many requests; a Hydra application around it stays as it was."""

    def __init__(self, registry: Registry, config_dirs: Sequence[Path] = ()) -> None:
        self.registry = registry
        self.presets = Presets(registry, config_dirs)
        self._words = Words(self.presets)
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
        parsed, faults = self._words.parse(overrides)
        lost = {f.group for f in faults if f.where.partition("=")[0] in GROUPS}
        faults += [
            several(i.input_line or "", is_listed(i)) for i in parsed if i.is_sweep_override()
        ]
        points = [item for item in parsed if not item.is_sweep_override()]
        lost |= {item.key_or_group for item in parsed if item.is_sweep_override()}
        tree, more = self._tree(points, lost)
        faults += more
        if "model" in tree:
            tree["model"] = self.presets.opened(tree["model"])
        said = frozenset(key for i in points for key in spoken(i.key_or_group, i.value()))
        config, wrong = inspect(tree, self.registry, said)
        faults += [f for f in wrong if f.group not in lost]
        if faults or config is None:
            raise ConfigError(list(dict.fromkeys(faults)))
        return config

    def columns(self, overrides: Sequence[str]) -> list[tuple[str, ...]]:
        """Return each override with its values, as plain overrides; an axis has several.

        Axes are `norm=layernorm,rmsnorm`, `choice`, `range` and `glob`; `spelled` adds those of an
        experiment.

        Errors: ConfigError with every override that is malformed or spans nothing.
        """
        parsed, faults = self._words.parse(overrides)
        columns = []
        for item in parsed:
            values = self._words.values(item, faults)
            columns.append(tuple(f"{item.key_or_group}={value}" for value in values))
        if faults:  # then those of the values that stand alone belong in the same message
            try:
                self.configure([i.input_line or "" for i in parsed if not i.is_sweep_override()])
            except ConfigError as error:
                faults += [fault for fault in error.faults if fault not in faults]
            raise ConfigError(faults)
        return columns

    def values(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Return the resolved values of one point, unchecked; what cannot be resolved is left out.

        A place without a value of its own, such as an option that the part lacks, is there too.
        """
        parsed, _ = self._words.parse(overrides)
        tree, _ = self._tree([item for item in parsed if not item.is_sweep_override()], set())
        return tree

    def origins(self, overrides: Sequence[str]) -> list[Origin]:
        """Return every leaf of a request's resolved configuration with the place that set it."""
        values = dict(leaves(plain(self.configure(overrides))))
        parsed, _ = self._words.parse(overrides)
        sources = dict.fromkeys(values, "default")
        sources |= self._file_origins([i.input_line or "" for i in parsed if is_group(i)])
        sources |= {i.key_or_group: "command line" for i in parsed if not is_group(i)}
        sources |= {f"{i.key_or_group}.part": "command line" for i in parsed if is_group(i)}
        first, *others = SEEDS
        sources |= {name: first for name in others if sources[name] == "default"}
        return [Origin(path, value, sources[path]) for path, value in values.items()]

    def spelled(self, overrides: Sequence[str]) -> list[str]:
        """Return the overrides with the axes of their experiment before them."""
        names = [text for text in overrides if text.startswith("experiment=")]
        parsed, faults = self._words.parse(names)
        if not parsed or faults:
            return list(overrides)
        if parsed[0].is_sweep_override():
            self._refuse_axes(self._words.values(parsed[0], []))
            return list(overrides)
        whole = self.compose(tuple(dict.fromkeys(names)))
        given = {SHORT.get(key, key) for key in (text.partition("=")[0] for text in overrides)}
        found = [f"{key}={show(value)}" for key, value in _params(whole).items()]
        return [t for t in found if SHORT.get(k := t.partition("=")[0], k) not in given] + list(
            overrides
        )

    def _refuse_axes(self, experiments: Sequence[str]) -> None:
        """Refuse experiments with axes of their own where the experiment is an axis itself.

        Errors: ConfigError.
        """
        faults = []
        for name in experiments:
            known = name in self.presets.groups["experiment"]
            if params := _params(self.compose((f"experiment={name}",))) if known else {}:
                problem = f"has axes of its own, {', '.join(params)}, and cannot be one of several."
                faults.append(Fault(f"experiment={name}", problem, "Choose it alone."))
        if faults:
            raise ConfigError(faults)

    def _tree(
        self, items: Sequence[Override], lost: set[str]
    ) -> tuple[dict[str, Any], list[Fault]]:
        """Return the merged and resolved tree of well-formed overrides, with what went wrong."""
        choices = {item.key_or_group: item for item in items if is_group(item)}
        # An experiment may change what its choices hold, and so it needs Hydra for each of them.
        asked = choices if "experiment" in choices else {}
        groups = tuple(sorted(item.input_line or "" for item in asked.values()))
        if groups not in self._trees:
            composed = self.compose(groups)
            keys = [str(key) for key in composed if key != "hydra"]
            self._trees[groups] = OmegaConf.masked_copy(composed, keys)
        tree = self._trees[groups].copy()
        OmegaConf.set_struct(tree, False)
        for group, item in choices.items() if not asked else ():
            tree[group] = self.presets.read(group, str(item.value()))
        faults: list[Fault] = []
        for item in items:
            if is_group(item) or item.key_or_group.partition(".")[0] in lost:
                continue
            try:
                OmegaConf.update(tree, item.key_or_group, item.value(), force_add=True)
            except OmegaConfBaseException as error:
                faults.append(Fault(item.input_line or "", f"{cause(error)}."))
        whole, wrong = resolved(tree)
        lost.update(wrong)
        faults += [fault for found in wrong.values() for fault in found]
        return whole, faults

    def compose(self, words: tuple[str, ...]) -> DictConfig:
        """Return what Hydra makes of well-formed words, its own node included.

        Errors: ConfigError when Hydra refuses, or when an experiment reaches beyond its parts.
        """
        where = " ".join(words) or "conf"
        if words:
            self.presets.require_small()
        try:
            with without_environment():
                whole = hydra.compose(
                    "config", [*self._search_path(), *words], return_hydra_config=True
                )
        except Exception as error:  # Hydra's, yaml's, the file system's, RecursionError
            hint = self.presets.clash_in(str(error))
            raise ConfigError([Fault(where, f"{cause(error)}.", hint)]) from error
        choices = whole.hydra.runtime.choices
        faults = [
            fault
            for group in GROUPS
            if choices[group] is not None
            for fault in self.presets.faults(group, choices[group])
        ]
        if choices["experiment"] is not None:
            faults += self._experiment_faults(f"experiment={choices['experiment']}", whole)
        if faults:
            raise ConfigError(faults)
        return whole

    def _experiment_faults(self, where: str, whole: DictConfig) -> list[Fault]:
        """Return a fault for each setting of Hydra that an experiment changes beside its axes."""
        plain_words = [*self._search_path(), *whole.hydra.overrides.hydra]
        usual = hydra.compose("config", plain_words, return_hydra_config=True)
        now, before = (_settings_of_hydra(tree) for tree in (whole, usual))
        changed = [key for key in now | before if now.get(key) != before.get(key)]
        changed += ["sweeper.params.experiment"] * ("experiment" in _params(whole))
        problem = "and an experiment may set hydra.sweeper.params alone, its axes."
        places = dict.fromkeys(key.partition(".")[0] for key in changed)
        return [Fault(where, f"sets hydra.{place}, {problem}", "Remove it.") for place in places]

    def _search_path(self) -> list[str]:
        extra = ",".join(quoted(f"file://{path.resolve()}") for path in self.presets.directories)
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
            for leaf, _ in leaves(source.content()):
                origins[prefix + leaf] = label
        choices = found.overrides.known_choices
        experiment = choices["experiment"]
        for kind in KINDS:
            usual = choices[kind] == self.presets.default(kind)
            origins[f"{kind}.part"] = "config.yaml" if usual else f"experiment={experiment}"
        return origins


def _params(whole: DictConfig) -> dict[str, Any]:
    """Return the axes of the chosen experiment."""
    params = OmegaConf.to_container(whole.hydra.sweeper.get("params") or OmegaConf.create())
    return {str(key): value for key, value in params.items()} if isinstance(params, dict) else {}


def _settings_of_hydra(whole: DictConfig) -> dict[str, Any]:
    """Return the leaves of Hydra's own node that are settings, not facts about this call."""
    tree = OmegaConf.to_container(whole.hydra)
    facts = ("overrides", "runtime", "sweeper.params", "job.override_dirname")
    return {key: value for key, value in leaves(tree) if not key.startswith(facts)}


def publish(presets: Presets) -> None:
    """Put parts, plugins' presets, and the settings' defaults, where Hydra finds them."""
    store = ConfigStore.instance()
    for folder, name, package, values in presets.published():
        store.store(group=folder, name=name, package=package, node=values)
    settings = {group: defaults_of(options) for group, options in SETTINGS.items()}
    seeds = dict(zip(SEEDS, (0, "${seed}", "${seed}"), strict=True))
    store.store(name="schema", node={"schema": SCHEMA, **settings, **seeds})


@contextmanager
def borrowed(presets: Presets) -> Iterator[None]:
    """Publish our nodes in Hydra's global state, alone; afterwards it is as it was."""
    with _ONE_AT_A_TIME:
        held = GlobalHydra.instance().hydra
        versions = dict(vars(VersionBase.instance()))
        searched = list(Plugins.instance().plugin_type_to_subclass_list[SearchPathPlugin])
        store = ConfigStore.instance()
        nodes = store.repo
        store.repo = {key: value for key, value in nodes.items() if key not in GROUPS}
        publish(presets)
        GlobalHydra.instance().clear()
        try:
            yield
        finally:
            store.repo = nodes
            Plugins.instance().plugin_type_to_subclass_list[SearchPathPlugin][:] = searched
            GlobalHydra.instance().hydra = held
            vars(VersionBase.instance()).update(versions)


@contextmanager
def _hydra_session(presets: Presets) -> Iterator[None]:
    with (
        borrowed(presets),
        hydra.initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE),
    ):
        yield
