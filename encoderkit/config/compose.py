"""Override strings to a `Config`, by Hydra's grammar; launch.py alone knows Hydra besides."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from hydra.version import VersionBase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from encoderkit.api import KINDS
from encoderkit.config.check import (
    DEEPEST,
    SCHEMA,
    SEEDS,
    SHORT,
    code_faults,
    inspect,
    plain,
    show,
    unknown_choice,
)
from encoderkit.config.overrides import Origin, cause, leaves, quoted, refused, resolved, several
from encoderkit.config.presets import Presets, defaults_of
from encoderkit.config.schema import SETTINGS, Config
from encoderkit.errors import ConfigError, Fault, nearest
from encoderkit.registry import GROUPS, Entry, Registry, conf_dir

TEXTS = ("sweep.baseline", "sweep.dir", "sweep.name")  # taken as typed, whatever is in them
MOST_POINTS = 100_000
_ONE_AT_A_TIME = threading.RLock()  # Hydra's state is global; threads take turns
VERSION_BASE = "1.3" if hydra.__version__ < "1.4" else None


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
        lost = {f.group for f in faults if f.where.partition("=")[0] in GROUPS}
        faults += [
            several(i.input_line or "", _is_listed(i)) for i in parsed if i.is_sweep_override()
        ]
        points = [item for item in parsed if not item.is_sweep_override()]
        lost |= {item.key_or_group for item in parsed if item.is_sweep_override()}
        tree, more = self._tree(points, lost)
        faults += more
        if "model" in tree:
            tree["model"] = self.presets.opened(tree["model"])
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
        parsed, faults = self._parse(self.spelled(overrides))
        columns: list[list[str]] = []
        for item in parsed:
            values = self._values(item, faults)
            columns.append([f"{item.key_or_group}={value}" for value in values])
        if math.prod(map(len, columns)) > MOST_POINTS:
            axes = " ".join(i.input_line or "" for i in parsed if i.is_sweep_override())
            problem = f"spans more than the {MOST_POINTS} points that can be planned."
            faults.append(Fault(axes, problem, "Take fewer values."))
        if faults:  # then those of the values that stand alone belong in the same message
            try:
                self.configure([i.input_line or "" for i in parsed if not i.is_sweep_override()])
            except ConfigError as error:
                faults += [fault for fault in error.faults if fault not in faults]
            raise ConfigError(faults)
        return [tuple(dict.fromkeys(point)) for point in itertools.product(*columns)]

    def axes(self, overrides: Sequence[str]) -> list[str]:
        """Return the keys that vary in the grid, in the order they were given."""
        parsed, _ = self._parse(self.spelled(overrides))
        return [item.key_or_group for item in parsed if item.is_sweep_override()]

    def origins(self, overrides: Sequence[str]) -> list[Origin]:
        """Return every leaf of a request's resolved configuration with the place that set it."""
        values = dict(leaves(plain(self.configure(overrides))))
        parsed, _ = self._parse(overrides)
        sources = dict.fromkeys(values, "default")
        sources |= self._file_origins([i.input_line or "" for i in parsed if _is_group(i)])
        sources |= {i.key_or_group: "command line" for i in parsed if not _is_group(i)}
        sources |= {f"{i.key_or_group}.part": "command line" for i in parsed if _is_group(i)}
        first, *others = SEEDS
        sources |= {name: first for name in others if sources[name] == "default"}
        return [Origin(path, value, sources[path]) for path, value in values.items()]

    def _parse(self, overrides: Sequence[str]) -> tuple[list[Override], list[Fault]]:
        """Return the well-formed overrides and a fault for each of the others."""
        parsed: list[Override] = []
        faults: list[Fault] = []
        given: dict[str, str] = {}
        for text in overrides:
            key, equals, value = text.partition("=")
            if key in TEXTS and value != "null" and value[:1] not in ("'", '"', "$"):
                value = quoted(value)
            try:
                (item,) = self._parser.parse_overrides([f"{SHORT.get(key, key)}{equals}{value}"])
            except (HydraException, ValueError, RecursionError) as error:
                faults.append(refused(text, error))
                continue
            before = given.setdefault(item.key_or_group, text)
            found = (
                self._form_faults(item)
                if before == text
                else [
                    Fault(text, f"{item.key_or_group} was given before, as {before}.", "Keep one.")
                ]
            )
            parsed += [] if found else [item]
            faults += found
        return parsed, faults

    def _form_faults(self, item: Override) -> list[Fault]:
        """Return what is wrong with an override's form, or with its choice."""
        fault = self._form_fault(item)
        if fault or item.is_sweep_override() or not _is_group(item):
            return [fault] if fault else []
        group, name = item.key_or_group, item.value()
        known = list(self.presets.groups[group])
        if not isinstance(name, str) or name not in known:
            return [unknown_choice(group, name, known, self.registry)]
        broken = self.presets.faults(group, name)
        return [Fault(f"{group}={name}", f"{f.where}: {f.problem}", f.hint) for f in broken]

    def _form_fault(self, item: Override) -> Fault | None:
        """Return what is wrong with an override's form."""
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
            hint = f"Choose with {kind}={line.partition('=')[2]}."
            return Fault(line, "is read-only.", hint)
        if key.count(".") > DEEPEST:
            return Fault(line, f"is nested more than {DEEPEST} levels deep.", "Remove it.")
        code = [] if item.is_sweep_override() else code_faults({key: item.value()})
        return code[0] if code else None

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
        strings = itertools.islice(item.sweep_string_iterator(), MOST_POINTS + 1)
        values = list(dict.fromkeys(strings))
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

    def spelled(self, overrides: Sequence[str]) -> list[str]:
        """Return the overrides with the axes of their experiment before them."""
        names = [text for text in overrides if text.startswith("experiment=")]
        if not names or self._parse(names)[1]:
            return list(overrides)
        whole = self.compose(tuple(dict.fromkeys(names)))
        given = {SHORT.get(key, key) for key in (text.partition("=")[0] for text in overrides)}
        found = [f"{key}={show(value)}" for key, value in _params(whole).items()]
        return [t for t in found if SHORT.get(k := t.partition("=")[0], k) not in given] + list(
            overrides
        )

    def _tree(
        self, items: Sequence[Override], lost: set[str]
    ) -> tuple[dict[str, Any], list[Fault]]:
        """Return the merged and resolved tree of well-formed overrides, with what went wrong."""
        choices = {item.key_or_group: item for item in items if _is_group(item)}
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
            if _is_group(item) or item.key_or_group.partition(".")[0] in lost:
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
        try:
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


def _is_group(item: Override) -> bool:
    return item.key_or_group in GROUPS


def _is_listed(item: Override) -> bool:
    """Tell whether an override is a,b where a list or a text may have been meant."""
    return item.value_type == ValueType.SIMPLE_CHOICE_SWEEP and not _is_group(item)


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
