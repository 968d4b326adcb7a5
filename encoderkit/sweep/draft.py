"""A plan in the making: every variant checked, built and counted, and every fault kept."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encoderkit.config.check import plain
from encoderkit.config.compose import Composer
from encoderkit.config.identity import identity, part_versions
from encoderkit.config.schema import Config, SweepOptions
from encoderkit.errors import ConfigError, EncoderkitError, Fault
from encoderkit.sweep import axes, git
from encoderkit.sweep.cell import Cell


@dataclass(frozen=True, slots=True)
class Facts:
    """What a plan knows of a task."""

    sizes: tuple[int, int]  # vocabulary, outputs
    data_hash: str
    about: dict[str, Any]


class Tasks:
    """Each task built once, for its facts."""

    def __init__(self) -> None:
        self._known: dict[str, Facts] = {}

    def facts(self, config: Config) -> Facts:
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
            self._known[key] = Facts((task.vocab, task.outputs), task.data_hash, about)
        return self._known[key]


@dataclass(slots=True)
class Draft:
    """A plan in the making: cells by seed, and every fault with the variants that have it."""

    composer: Composer
    config_dirs: Sequence[Path]
    sweep: SweepOptions = field(default_factory=SweepOptions)
    threads: int = 1
    merged: dict[str, str] = field(default_factory=dict)
    _rounds: dict[int, list[Cell]] = field(default_factory=dict)
    _labels: list[str] = field(default_factory=list)
    _faults: dict[Fault, list[str]] = field(default_factory=dict)
    _owner: dict[str, str] = field(default_factory=dict)
    _tasks: Tasks = field(default_factory=Tasks)
    _cause: Exception | None = None
    _git: dict[str, Any] | None = field(default_factory=git.state)

    def add(self, point: tuple[str, ...], label: str) -> None:
        """Check one variant, and add a cell for each of its seeds."""
        self._labels.append(label)
        try:
            config = self.composer.configure(point)
            seeds = _seeds(config)
            parameters = _count(config, self._tasks.facts(config).sizes)
        except ConfigError as error:
            self._note(error.faults, label)
        except Exception as error:  # a stranger's part or task may raise anything
            words = str(error) if isinstance(error, EncoderkitError) else repr(error)
            self._cause = self._cause or error
            self._note([Fault("this variant", f"cannot be built: {words}")], label)
        else:
            self.sweep = config.sweep
            self.threads = max(self.threads, config.run.threads)
            for place, seed in enumerate(seeds):
                self._add_cell(point, label, seed, place, parameters)

    def finish(self) -> list[Cell]:
        """Return all cells, first seed first. Errors: ConfigError with every fault."""
        everywhere = len(set(self._labels))
        faults = []
        for fault, labels in self._faults.items():
            names = list(dict.fromkeys(labels))
            if len(names) == everywhere:
                faults.append(fault)
            else:
                faults += [dataclasses.replace(fault, where=f"{n}: {fault.where}") for n in names]
        if faults:
            raise ConfigError(faults) from self._cause
        return [cell for place in sorted(self._rounds) for cell in self._rounds[place]]

    def _note(self, faults: Sequence[Fault], label: str) -> None:
        for fault in faults:
            self._faults.setdefault(fault, []).append(label)

    def _add_cell(
        self, point: tuple[str, ...], label: str, seed: int, place: int, parameters: int
    ) -> None:
        kept = axes.without_runner(point)
        request = (*kept, f"seed={seed}")
        config = self.composer.configure(
            [*(o for o in point if axes.key(o) != "seed"), request[-1]]
        )
        facts = self._tasks.facts(config)
        name = identity(config, facts.data_hash)
        if name in self._owner:
            if self._owner[name] != label:
                self.merged[label] = self._owner[name]
            return
        self._owner[name] = label
        places = [f"--config-dir={path}" for path in self.config_dirs]
        cell = Cell(
            id=name,
            slug=axes.slug(label, seed),
            label=label,
            overrides=request,
            seed=seed,
            tree=plain(config),
            parameters=parameters,
            parts=part_versions(config),
            data_hash=facts.data_hash,
            task=facts.about,
            reproduce=shlex.join(["encoderkit", "train", *places, *request]),
            git=self._git,
        )
        self._rounds.setdefault(place, []).append(cell)


def _seeds(config: Config) -> list[int]:
    """Return the seeds of a variant: a list as it is, a number from the variant's own seed up."""
    seeds = config.sweep.seeds
    if not isinstance(seeds, list):
        return [config.seed + k for k in range(seeds)]
    if config.seed not in (0, *seeds):
        problem = "has no effect beside a list of seeds."
        raise ConfigError([Fault(f"seed={config.seed}", problem, "Remove it, or give seeds=3.")])
    return seeds


def _count(config: Config, sizes: tuple[int, int]) -> int:
    """Return the model's number of parameters, from a build on the meta device."""
    from encoderkit.nn.build import build_model  # imports torch

    model = build_model(config, *sizes, device="meta")
    return sum(parameter.numel() for parameter in model.parameters())
