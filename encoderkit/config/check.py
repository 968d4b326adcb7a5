"""Check a plain nested mapping against the registry and make it a `Config`, finding all faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

from encoderkit.api import KINDS, Options, Range, fit
from encoderkit.config.layers import layer_faults, read_rules
from encoderkit.config.live import dead
from encoderkit.config.schema import (
    SETTINGS,
    Chosen,
    Config,
    ModelOptions,
    Rule,
    SweepOptions,
)
from encoderkit.config.text import overgrown
from encoderkit.config.text import show as show
from encoderkit.errors import ConfigError, Fault, nearest
from encoderkit.registry import Registry

SCHEMA = 1
SEEDS = ("seed", "seed_init", "seed_data")
SHORT = {
    "seeds": "sweep.seeds",
    "jobs": "sweep.jobs",
    "match": "sweep.match",
    "budget": "sweep.budget",
}
CODE = ("_target_", "_partial_", "_args_", "_recursive_", "_convert_")  # what Hydra would call
MOST_SEEDS = 1000


def check(
    tree: Mapping[str, Any], registry: Registry, said: frozenset[str] = frozenset()
) -> Config:
    """Return the typed form of a resolved configuration, with whole paths and no presets in it.

    `said` are the keys that somebody set: of those, what has no effect is a fault.

    Errors: ConfigError with every fault there is.
    """
    config, faults = inspect(tree, registry, said)
    if config is None:
        raise ConfigError(faults)
    return config


def inspect(
    tree: Mapping[str, Any], registry: Registry, said: frozenset[str] = frozenset()
) -> tuple[Config | None, list[Fault]]:
    """Return the typed form, or None with all the faults."""
    if fault := overgrown(tree):
        return None, [fault]
    faults = code_faults(tree)
    values: dict[str, Any] = {}
    for key in ("schema", *SEEDS):
        value = tree.get(key, SCHEMA if key == "schema" else 0)
        if faults and key in SEEDS[1:] and show(value) == show(tree.get("seed")):
            continue  # follows `seed`, whose fault is named
        values[key] = _leaf(value, int, key, faults)
    if values.pop("schema") not in (SCHEMA, None):
        faults.append(
            Fault(f"schema={show(tree['schema'])}", f"this encoderkit reads schema {SCHEMA}.")
        )
    for kind in KINDS:
        values[kind] = _choose(kind, tree.get(kind, {}), registry, faults)
    for group, options in SETTINGS.items():
        given, label = tree.get(group, {}), f"the {group} settings"
        if group == "model" and isinstance(given, Mapping):
            given, parts = _model_parts(given, values, registry, faults)
        values[group] = _fill(options, given, group, label, faults)
    for key in tree:
        if key not in (*KINDS, *SETTINGS, *SEEDS, "schema", *CODE):
            faults.append(_unknown_key(str(key), tree[key], registry))
    if faults:
        return None, faults
    config = Config(**values, said=said)
    config.model.layers, config.model.embed_norm = parts
    wrong = _consistent(config)
    wrong = wrong or dead(config)
    return (None, wrong) if wrong else (config, [])


def _model_parts(
    node: Mapping[str, Any], values: Mapping[str, Any], registry: Registry, faults: list[Fault]
) -> tuple[dict[str, Any], tuple[list[Rule], Chosen | None]]:
    """Return the model's node without the parts that are chosen inside it, and those parts.

    They are a choice, a mapping with `part`, or options that change the part chosen above.
    """

    def choose(kind: str, given: Any, path: str) -> Chosen | None:
        base: Chosen | None = values[kind]
        changed: frozenset[str] | None = None
        if isinstance(given, str):
            given = {"part": given}
        if isinstance(given, Mapping) and "part" not in given:
            if base is None:
                return None  # its fault is named above
            changed = frozenset(map(str, given))
            given = {"part": base.entry.part.name, **dataclasses.asdict(base.options), **given}
        found = _choose(kind, given, registry, faults, path)
        return None if found is None else dataclasses.replace(found, changed=changed)

    rest = dict(node)
    rules = read_rules(rest.pop("layers", []), choose, faults)
    norm = rest.pop("embed_norm", None)
    return rest, (rules, None if norm is None else choose("norm", norm, "model.embed_norm"))


def checked_settings(group: str, node: Any) -> Options:
    """Return the options of one group of settings.

    Errors: ConfigError with all faults.
    """
    faults: list[Fault] = []
    found = _fill(SETTINGS[group], node, group, f"the {group} settings", faults)
    if found is None:
        raise ConfigError(faults)
    return found


def _unknown_key(key: str, value: Any, registry: Registry) -> Fault:
    where = f"{key}={show(value)}"
    if key == "experiment":
        hint = f'Give strings: build("{where}").'
        return Fault(where, "an experiment cannot be named in a mapping.", hint)
    known = (*KINDS, *SETTINGS, *SEEDS, *SHORT, "experiment")
    places = _places(key, registry)
    meant = f"Did you mean {' or '.join(f'{p}={show(value)}' for p in places)}?" if places else ""
    hint = meant or nearest(key, known) or f"There are {', '.join(known)}."
    return Fault(where, "there is no such key.", hint)


def _places(name: str, registry: Registry) -> list[str]:
    """Return where an option of this name is: in the settings, and in parts; four at most."""
    owners = [*SETTINGS.items(), *((e.part.kind, e.part.options) for e in registry)]
    has = [group for group, own in owners if name in (f.name for f in dataclasses.fields(own))]
    return [f"{group}.{name}" for group in dict.fromkeys(has)][:4]


def code_faults(tree: Any, path: str = "") -> list[Fault]:
    """Return a fault for every key, of a tree that is not overgrown, that asks Hydra to call."""
    found: list[Fault] = []
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            where = f"{path}.{key}" if path else str(key)
            if str(key) in CODE:
                problem = "a configuration names parts, never code."
                found.append(Fault(f"{where}={show(value)}", problem, f"Remove {key}."))
            found += code_faults(value, where)
    elif isinstance(tree, list | tuple):
        for index, value in enumerate(tree):
            found += code_faults(value, f"{path}[{index}]")
    return found


def _choose(
    kind: str, node: Any, registry: Registry, faults: list[Fault], path: str = ""
) -> Chosen | None:
    """Return the part that a node such as {part: rmsnorm, eps: 1e-5} names, with its options."""
    path = path or kind
    if not isinstance(node, Mapping):
        problem = "must be a choice, or a mapping with `part`."
        hint = f"In a file, write `defaults: [override /{kind}: {node}]`."
        known = path == kind and (kind, str(node)) in registry.entries
        faults.append(Fault(f"{path}={show(node)}", problem, hint if known else ""))
        return None
    name = node.get("part")
    if not isinstance(name, str) or (kind, name) not in registry.entries:
        fault = unknown_choice(kind, name, registry.names(kind), registry)
        faults.append(dataclasses.replace(fault, where=f"{path}={show(name)}"))
        return None
    entry = registry.entries[(kind, str(name))]
    own = {key: value for key, value in node.items() if key != "part"}
    options = _fill(entry.part.options, own, path, f"{name}, {entry.owner}", faults)
    return None if options is None else Chosen(entry, options)


def unknown_choice(kind: str, name: Any, known: list[str], registry: Registry) -> Fault:
    """Return the fault of a name that several packages have, a broken one, or nobody."""
    where = f"{kind}={show(name)}"
    key = (kind, str(name).rpartition("/")[2])
    if key in registry.clashes and not registry.clashes[key].built_in:
        clash = registry.clashes[key]
        return Fault(where, f"is a name of {clash.whose}.", clash.advice)
    for problem in registry.problems:
        if key in (problem.choices or ()):
            return Fault(where, f"cannot be chosen: {problem}.")
    plain = key[1] if key[1] in known else ""
    hint = f"Did you mean {plain}?" if plain else nearest(str(name), known)
    broken = "".join(f" ({problem})" for problem in registry.problems if problem.choices is None)
    return Fault(where, f"must be one of {', '.join(known)}.", (hint + broken).strip())


def _fill(
    options: type[Options], node: Any, path: str, label: str, faults: list[Fault]
) -> Options | None:
    """Return an instance of `options` with the node's values, or None when any is wrong."""
    if not isinstance(node, Mapping):
        faults.append(Fault(f"{path}={show(node)}", "must be a mapping of options."))
        return None
    before = len(faults)
    specs = {spec.name: spec for spec in dataclasses.fields(options)}
    for key, value in node.items():
        if key not in specs and key not in CODE:
            close = nearest(str(key), specs).replace("mean ", f"mean {path}.")
            problem = f"there is no such option ({label})."
            hint = close or f"It has {', '.join(specs) or 'none'}."
            faults.append(Fault(f"{path}.{key}={show(value)}", problem, hint))
    filled: dict[str, Any] = {}
    hints = get_type_hints(options)
    for name, spec in specs.items():
        if name in node:
            value = node[name]
            about = _Hint(spec, f"{path}.{name}", label)
            filled[name] = _leaf(value, hints[name], f"{path}.{name}", faults, about)
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            faults.append(Fault(f"{path}.{name}", f"is missing and has no default ({label})."))
    if len(faults) > before:
        return None
    try:
        return options(**filled)
    except Exception as error:  # a stranger's __post_init__ may raise anything
        faults.append(Fault(path, f"{type(error).__name__}: {error} ({label})."))
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Hint:
    """What a fault of one option needs to say: its range, its owner, a value to type."""

    spec: dataclasses.Field[Any]
    path: str
    label: str

    @property
    def range(self) -> Range:
        declared: Range = self.spec.metadata.get("range", Range())
        return declared

    @property
    def advice(self) -> str:
        usable = self.spec.default not in (dataclasses.MISSING, None)
        return f"Try {self.path}={show(self.spec.default)}." if usable else ""


def _leaf(value: Any, hint: Any, path: str, faults: list[Fault], about: _Hint | None = None) -> Any:
    """Return the value fitted to its type and range; note a fault and return None otherwise."""
    label = f" ({about.label})" if about else ""
    advice = about.advice if about else f"Try {path}={SCHEMA if path == 'schema' else 0}."
    if isinstance(value, str) and value == "???":
        faults.append(Fault(path, f"is missing and must be given{label}.", advice))
        return None
    choices = about.range.choices if about else None
    if isinstance(value, bool) and choices and str(value).lower() in choices:
        value = str(
            value
        ).lower()  # final_norm=true: YAML and Hydra read a bool where a word is meant
    try:
        fitted = fit(value, hint)
    except TypeError as error:
        faults.append(Fault(f"{path}={show(value)}", f"must be {error}{label}.", advice))
        return None
    refusal = "" if about is None or fitted is None else about.range.refusal(fitted)
    if about is None and fitted < 0:
        refusal = "must be at least 0"
    if refusal:
        faults.append(Fault(f"{path}={show(value)}", f"{refusal}{label}.", advice))
        return None
    return fitted


def _consistent(config: Config) -> list[Fault]:
    """Return what is wrong between values, and set those that follow from others."""
    model, train = config.model, config.train
    faults = []
    if model.d_model % model.n_heads:
        fits = [h for h in range(1, model.d_model + 1) if model.d_model % h == 0]
        close = min(fits, key=lambda h: abs(h - model.n_heads))
        where = f"model.n_heads={model.n_heads}"
        problem = f"must divide model.d_model={model.d_model}."
        faults.append(Fault(where, problem, f"Try model.n_heads={close}."))
    faults += layer_faults(config)
    if train.accumulate > train.batch:
        where = f"train.accumulate={train.accumulate}"
        problem = f"must be at most train.batch={train.batch}: a micro-batch needs a sequence."
        faults.append(Fault(where, problem, f"Try train.accumulate={train.batch}."))
    if train.warmup > train.steps:
        where = f"train.warmup={train.warmup}"
        problem = f"must be at most train.steps={train.steps}."
        faults.append(Fault(where, problem, f"Try train.warmup={train.steps // 10}."))
    if model.d_ff is None:
        model.d_ff = 4 * model.d_model
    return faults + _sweep_faults(config.sweep)


def _sweep_faults(sweep: SweepOptions) -> list[Fault]:
    """Return what is wrong with the seeds of a sweep and with the place of its results."""
    faults = []
    if isinstance(sweep.seeds, list):
        seeds = sweep.seeds
        wrong = "" if seeds else "names no seed."
        wrong = wrong or ("" if min(seeds) >= 0 else "a seed is at least 0.")
        wrong = wrong or ("" if len(set(seeds)) == len(seeds) else "names a seed twice.")
    else:
        wrong = "" if sweep.seeds >= 1 else "names no seed."
        wrong = wrong or ("" if sweep.seeds <= MOST_SEEDS else f"is more than {MOST_SEEDS} seeds.")
    if wrong:
        faults.append(Fault(f"sweep.seeds={show(sweep.seeds)}", wrong, "Try seeds=3."))
    if sweep.name is not None and (sweep.name in ("", ".", "..") or set(sweep.name) & {"/", "\0"}):
        problem = "must be the name of one directory below runs."
        hint = "Try sweep.name=mine, or sweep.dir=DIR for another place."
        faults.append(Fault(f"sweep.name={sweep.name}", problem, hint))
    if sweep.dir is not None and (not sweep.dir or "\0" in sweep.dir):
        faults.append(
            Fault(f"sweep.dir={sweep.dir}", "must be a path.", "Try sweep.dir=runs/mine.")
        )
    return faults


def plain(config: Config) -> dict[str, Any]:
    """Return a configuration as nested plain values: what config.yaml holds, and `check` reads."""
    tree: dict[str, Any] = {"schema": SCHEMA}
    tree |= {kind: _node(getattr(config, kind)) for kind in KINDS}
    tree |= {group: settings(getattr(config, group)) for group in SETTINGS}
    return tree | {seed: getattr(config, seed) for seed in SEEDS}


def settings(options: Options) -> dict[str, Any]:
    """Return the options of a group of settings as plain values."""
    if not isinstance(options, ModelOptions):
        return dataclasses.asdict(options)
    tree = dataclasses.asdict(dataclasses.replace(options, layers=[], embed_norm=None))
    for rule in options.layers:
        slot = {} if rule.slot is None else {"slot": rule.slot}
        parts = {kind: _node(chosen) for kind, chosen in rule.parts.items()}
        tree["layers"].append({"at": rule.at, **slot, **parts})
    if options.embed_norm is not None:
        tree["embed_norm"] = _node(options.embed_norm)
    return tree


def _node(chosen: Chosen) -> dict[str, Any]:
    return {"part": chosen.entry.part.name, **dataclasses.asdict(chosen.options)}
