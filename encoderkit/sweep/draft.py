"""A plan in the making: every variant checked, built and counted, and every fault kept."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encoderkit.config.check import plain, show
from encoderkit.config.compose import Composer
from encoderkit.config.identity import identity, part_versions
from encoderkit.config.overrides import quoted
from encoderkit.config.schema import Config, SweepOptions
from encoderkit.errors import ConfigError, EncoderkitError, Fault
from encoderkit.sweep import axes, git
from encoderkit.sweep.cell import Cell
from encoderkit.sweep.variant import Counts, Variant


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What a plan knows of a task."""

    sizes: tuple[int, int]  # vocabulary, outputs
    data_hash: str
    about: dict[str, Any]


class Tasks:
    """Each task built once, for its facts."""

    def __init__(self) -> None:
        self._known: dict[str, TaskFacts] = {}

    def facts(self, config: Config) -> TaskFacts:
        """Return the facts of a configuration's task. Errors: as in `build_task`."""
        options = dataclasses.asdict(config.task.options)
        key = json.dumps([config.task.entry.part.name, options, config.seed_data])
        if key not in self._known:
            from encoderkit.data.build import build_task  # imports torch

            task = build_task(config)
            about = {
                "metric": task.metric,
                "lower_is_better": task.lower_is_better,
                "trivial_loss": task.trivial_loss,
                "baselines": dict(task.baselines),
            }
            self._known[key] = TaskFacts((task.vocab, task.outputs), task.data_hash, about)
        return self._known[key]


@dataclass(slots=True)
class Draft:
    """A plan in the making: variants in the order they were asked for, and all faults by label."""

    composer: Composer
    config_dirs: Sequence[Path]
    sweep: SweepOptions
    counts: Counts = field(default_factory=Counts)
    threads: int = 1
    merged: dict[str, str] = field(default_factory=dict)
    variants: list[Variant] = field(default_factory=list)
    faults: dict[Fault, list[str]] = field(default_factory=dict)
    _labels: list[str] = field(default_factory=list)
    _given: set[str] = field(default_factory=set)
    _owner: dict[str, str] = field(default_factory=dict)
    _tasks: Tasks = field(default_factory=Tasks)
    _cause: Exception | None = None
    _git: dict[str, Any] | None = field(default_factory=git.state)

    def add(self, point: tuple[str, ...], label: str) -> None:
        """Check one variant, build it on the meta device and count it."""
        self._labels.append(label)
        self._given.update(map(axes.key, point))
        with self._noting(label):
            while idle := self._idle(point):
                point = tuple(text for text in point if axes.key(text) not in idle)
                label = " ".join(word for word in label.split(" ") if axes.key(word) not in idle)
            config = self.composer.configure(point)
            self._refuse_other(config.sweep)
            seeds = _seeds(config)
            facts = self.counts.facts(config, self._tasks.facts(config).sizes)
            self.threads = max(self.threads, config.run.threads)
            label = label or axes.DEFAULT
            self.variants.append(
                Variant(label=label, point=point, config=config, seeds=seeds, facts=facts)
            )

    def _idle(self, point: tuple[str, ...]) -> set[str]:
        """Return the optional keys that have no effect on a variant, if they are all its faults."""
        if not self.sweep.optional:
            return set()
        try:
            config = self.composer.configure(point)
            self.counts.facts(config, self._tasks.facts(config).sizes)
        except ConfigError as error:
            idle = {axes.key(fault.where) for fault in error.faults if "no effect" in fault.problem}
            optional = idle & set(self.sweep.optional)
            return optional if len(optional) == len(error.faults) else set()
        return set()

    def _refuse_other(self, sweep: SweepOptions) -> None:
        """Refuse settings of the sweep that one variant alone has, by its experiment.

        Errors: ConfigError.
        """
        ours, theirs = dataclasses.asdict(self.sweep), dataclasses.asdict(sweep)
        problem = "is said for some variants, and counts for a whole sweep."
        faults = [
            Fault(f"sweep.{name}={show(value)}", problem, "Give it beside the experiments.")
            for name, value in theirs.items()
            if value != ours[name]
        ]
        if faults:
            raise ConfigError(faults)

    def adjust(self, change: Callable[[Variant], Variant]) -> None:
        """Put in the place of each variant what `change` makes of it, and note its faults."""
        before, self.variants = self.variants, []
        for variant in before:
            with self._noting(variant.label):
                self.variants.append(change(variant))

    def again(self, variant: Variant, word: str) -> Variant:
        """Return the variant with one more override. Errors: ConfigError."""
        replaced = {axes.key(word)}
        if axes.key(word) == "ffn.width":
            replaced.add("model.d_ff")  # which has no effect then
        kept = (text for text in variant.point if axes.key(text) not in replaced)
        point = (*kept, word)
        config = self.composer.configure(point)
        facts = self.counts.facts(config, self._tasks.facts(config).sizes)
        return dataclasses.replace(variant, point=point, config=config, facts=facts)

    @contextmanager
    def _noting(self, label: str) -> Iterator[None]:
        """Keep what goes wrong with a variant."""
        try:
            yield
        except ConfigError as error:
            self._note(error.faults, label)
        except Exception as error:  # a stranger's part or task may raise anything
            words = str(error) if isinstance(error, EncoderkitError) else repr(error)
            self._cause = self._cause or error
            self._note([Fault("this variant", f"cannot be built: {words}")], label)

    def _note(self, faults: Sequence[Fault], label: str) -> None:
        for fault in faults:
            self.faults.setdefault(fault, []).append(label)

    def refuse(self) -> None:
        """Refuse the plan when a variant has a fault.

        Errors: ConfigError with every fault; those of some variants only name them, and a last line
        says how to leave these variants out.
        """
        everywhere = len(set(self._labels))
        lacking = self._lacking()
        faults = []
        for fault, labels in self.faults.items():
            names = list(dict.fromkeys(labels))
            if len(names) == everywhere:
                faults.append(fault)
                continue
            hint = fault.hint
            if axes.key(fault.where) in lacking and _idle_key(fault):
                keys = ",".join(dict.fromkeys([*self.sweep.optional, *lacking]))
                hint += f" Type sweep.optional=[{keys}] to set it only where it has an effect."
            fault = dataclasses.replace(fault, hint=hint.lstrip())
            faults += [dataclasses.replace(fault, where=f"{n}: {fault.where}") for n in names]
        if faults:
            raise ConfigError(faults, self._way_out(everywhere)) from self._cause

    def _lacking(self) -> list[str]:
        """Return the options given that some variants take, and that do nothing in the others."""
        without: dict[str, set[str]] = {}
        for fault, labels in self.faults.items():
            key = axes.key(fault.where)
            if _idle_key(fault) and "." in key and key in self._given:
                without.setdefault(key, set()).update(labels)
        return [key for key, labels in without.items() if labels < set(self._labels)]

    def _way_out(self, everywhere: int) -> str:
        """Return how to leave out the variants that have faults, where others have none."""
        wrong = list(self.illegal())
        if len(wrong) == everywhere:
            return ""
        return (
            f"{len(wrong)} of {everywhere} variants have faults. `encoderkit sweep --skip-illegal` "
            f'leaves them out; "sweep.exclude=[{quoted(wrong[0])}]" leaves out the first.'
        )

    def illegal(self) -> dict[str, list[str]]:
        """Return the variants that have faults, each with all of them."""
        found: dict[str, list[str]] = {}
        for fault, labels in self.faults.items():
            for label in dict.fromkeys(labels):
                found.setdefault(label, []).append(str(fault))
        return found

    def cells(self) -> list[Cell]:
        """Return all cells, first seed first; what two variants share is one cell."""
        rounds: dict[int, list[Cell]] = {}
        for variant in self.variants:
            for place, seed in enumerate(variant.seeds):
                cell = self._cell(variant, seed)
                if cell.id not in self._owner:
                    self._owner[cell.id] = variant.label
                    rounds.setdefault(place, []).append(cell)
                elif self._owner[cell.id] != variant.label:
                    self.merged[variant.label] = self._owner[cell.id]
        return [cell for place in sorted(rounds) for cell in rounds[place]]

    def _cell(self, variant: Variant, seed: int) -> Cell:
        request = (*axes.without_runner(variant.point), f"seed={seed}")
        config = variant.config
        if seed != config.seed:
            others = [text for text in variant.point if axes.key(text) != "seed"]
            config = self.composer.configure([*others, request[-1]])
        facts = self._tasks.facts(config)
        places = [f"--config-dir={path}" for path in self.config_dirs]
        return Cell(
            id=identity(config, facts.data_hash),
            slug=axes.slug(variant.label, seed),
            label=variant.label,
            overrides=request,
            seed=seed,
            tree=plain(config),
            parameters=variant.facts.parameters,
            flops=variant.facts.flops,
            parts=part_versions(config),
            data_hash=facts.data_hash,
            task=facts.about,
            reproduce=shlex.join(["encoderkit", "train", *places, *request]),
            git=self._git,
        )


def _idle_key(fault: Fault) -> bool:
    """Tell whether a fault is that of a key that a variant does not take."""
    return "no such option" in fault.problem or "no effect" in fault.problem


def _seeds(config: Config) -> list[int]:
    """Return the seeds of a variant: a list as it is, a number from the variant's own seed up."""
    seeds = config.sweep.seeds
    if not isinstance(seeds, list):
        return [config.seed + k for k in range(seeds)]
    if config.seed not in (0, *seeds):
        problem = "has no effect beside a list of seeds."
        raise ConfigError([Fault(f"seed={config.seed}", problem, "Remove it, or give seeds=3.")])
    return seeds
