"""Every key is alive: changed by itself, it changes what one can see of a run, or is listed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from encoderkit.api import KINDS
from encoderkit.cli import main
from encoderkit.config.check import plain
from encoderkit.config.identity import identity
from encoderkit.config.request import configure
from encoderkit.config.schema import SETTINGS, Config
from encoderkit.data.build import build_task
from encoderkit.nn.build import build_model
from encoderkit.plugins import registry
from encoderkit.registry import Entry
from encoderkit.testing.properties.options import CASE, options_matter, others, under
from encoderkit.testing.subject import Subject
from encoderkit.train import fit
from encoderkit.train.metrics import read_metrics

SORT = {"part": "sort", "length": 5, "symbols": 4, "eval_sequences": 8}
TASKS = {
    "sort": SORT,
    "mlm_pydoc": {"part": "mlm_pydoc", "length": 8, "rate": 0.3},
}
# Three steps near the trivial loss; dropout, for `seed` keys it and nothing else here.
BASE: dict[str, Any] = {
    "model": {"d_model": 8, "n_layers": 2, "n_heads": 2},
    "ffn.dropout": 0.2,
    "train": {"steps": 3, "batch": 4, "warmup": 1, "eval_every": 0},
    "run.device": "cpu",
}

CHANGES: dict[str, Any] = {
    "seed": 1,
    "seed_init": 1,
    "seed_data": 1,
    "model.d_model": 16,
    "model.n_layers": 1,
    "model.n_heads": 4,
    "model.d_ff": 12,
    "model.sublayers": ["ffn", "attention"],
    "model.layers": [{"at": 1, "norm": "rmsnorm"}],
    "model.embed_norm": "layernorm",
    "model.final_norm": "false",
    "train.steps": 4,
    "train.batch": 5,
    "train.lr": 1e-3,
    "train.schedule": "constant",
    "train.warmup": 2,
    "train.weight_decay": 0.5,
    "train.beta1": 0.5,
    "train.beta2": 0.5,
    "train.clip": 0.01,
    "train.precision": "bf16",
    "train.eval_every": 1,
    "train.judge_stall": False,
}
TASK_CHANGES: dict[str, dict[str, Any]] = {
    "sort": {"length": 6, "symbols": 5, "eval_sequences": 9},
    "mlm_pydoc": {"length": 9, "rate": 0.6},
}

RUNNER = "says where and how a run is executed; the numbers must not depend on it"
SWEEP = "says which runs there are and where they go; tests/sweep proves each"
EXCEPTIONS = {
    "train.accumulate": "splits a step to save memory: the same gradient up to rounding",
    "train.expected_seconds": "a forecast that is shown before a run",
    "run.device": RUNNER,
    "run.threads": RUNNER,
    "run.checkpoint_every": RUNNER,
    "run.keep": RUNNER,
    **{f"sweep.{spec.name}": SWEEP for spec in dataclasses.fields(SETTINGS["sweep"])},
}
PER_RUNNER = {
    "train.expected_seconds": {"sort": 3.0},
    "run.device": "auto",
    "run.threads": 2,
    "run.checkpoint_every": 1,
    "run.keep": "none",
    "sweep.name": "other",
    "sweep.seeds": 5,
}


def request(task: dict[str, Any], change: dict[str, Any]) -> Config:
    """Return the small run with a change, a whole path and its value."""
    tree = plain(configure({**BASE, "task": task}))
    tree["model"]["d_ff"] = None  # follows d_model
    for path, value in change.items():
        group, _, name = path.partition(".")
        if name:
            tree[group][name] = value
        else:
            tree[group] = value
    return configure(tree)


def seen(config: Config, directory: Path) -> dict[str, Any]:
    """Return what one can see of a run: batches, weights before and after, curves, its end."""
    task = build_task(config)
    model = build_model(config, task.vocab, task.outputs)
    found: dict[str, Any] = {}
    batches = [task.batch(k, config.train.batch) for k in range(2)]
    for n, batch in enumerate([*batches, *task.evaluation()]):
        found |= {f"batch {n} {spec}": getattr(batch, spec) for spec in ("tokens", "index")}
    found |= {f"before {name}": t.clone() for name, t in model.state_dict().items()}
    with torch.no_grad():
        found["forward"] = model.eval().logits(batches[0].tokens, batches[0].lengths)
    outcome = fit(model, task, config.train, config.run, directory)
    found |= {f"after {name}": t.clone() for name, t in model.state_dict().items()}
    curves = read_metrics(directory / "metrics.jsonl")
    found["curves"] = [(m.step, m.name, m.value) for m in curves]
    found["state"] = outcome.state
    return found


def alike(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(map(same, a.values(), b.values()))


def same(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return x.shape == y.shape and torch.equal(x, y)
    return bool(x is y or x == y)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return what one sees of the small run, for each task."""
    return {
        name: seen(request(task, {}), tmp_path_factory.mktemp(name)) for name, task in TASKS.items()
    }


def test_a_run_sees_the_same_twice(usual: Any, tmp_path: Path) -> None:
    assert alike(seen(request(SORT, {}), tmp_path), usual["sort"])
    assert usual["sort"]["state"] == "stalled"


@pytest.mark.parametrize("path", CHANGES)
def test_a_leaf_is_alive(usual: Any, tmp_path: Path, path: str) -> None:
    assert not alike(seen(request(SORT, {path: CHANGES[path]}), tmp_path), usual["sort"])


@pytest.mark.parametrize(
    ("task", "name"), [(task, name) for task, names in TASK_CHANGES.items() for name in names]
)
def test_a_leaf_of_a_task_is_alive(usual: Any, tmp_path: Path, task: str, name: str) -> None:
    changed = TASKS[task] | {name: TASK_CHANGES[task][name]}
    assert not alike(seen(request(changed, {}), tmp_path), usual[task])


@pytest.mark.parametrize("path", PER_RUNNER)
def test_what_belongs_to_the_runner_is_no_part_of_a_run(path: str) -> None:
    configs = request(SORT, {}), request(SORT, {path: PER_RUNNER[path]})
    assert plain(configs[0]) != plain(configs[1])
    assert identity(configs[0], "") == identity(configs[1], "")


def test_every_leaf_is_alive_or_listed() -> None:
    tree = plain(configure({}))
    leaves = {f"{group}.{name}" for group in SETTINGS for name in tree[group]}
    leaves |= tree.keys() - SETTINGS.keys() - set(KINDS) - {"schema"}
    assert leaves == CHANGES.keys() | EXCEPTIONS.keys()
    assert CHANGES.keys() & EXCEPTIONS.keys() == set()
    assert all(EXCEPTIONS.values())


def ours(kind: str | None = None) -> Iterator[Entry]:
    for entry in registry():
        if entry.owner.distribution == "encoderkit" and kind in (None, entry.part.kind):
            yield entry


def test_every_leaf_of_every_task_is_alive() -> None:
    options = {
        e.part.name: {s.name for s in dataclasses.fields(e.part.options)} for e in ours("task")
    }
    assert options == {name: changes.keys() for name, changes in TASK_CHANGES.items()}


WITH_OPTIONS = [
    entry.part for entry in ours() if entry.part.target and dataclasses.fields(entry.part.options)
]


@pytest.mark.parametrize("part", WITH_OPTIONS, ids=lambda part: f"{part.kind}={part.name}")
def test_every_option_of_a_part_matters(part: Any) -> None:
    subject = Subject(part.kind, configure({part.kind: part.name}))
    assert options_matter(subject, CASE) == 0


def test_every_option_of_every_part_is_tried_somewhere() -> None:
    """The kit passes over what a part cannot serve, and over a `when` that others decide."""
    tried, all_ = set(), set()
    for part in WITH_OPTIONS:
        subject = Subject(part.kind, configure({part.kind: part.name}))
        for spec in dataclasses.fields(part.options):
            name = f"{part.options.__name__}.{spec.name}"
            all_.add(name)
            live, _ = under(subject, spec)
            served = spec.metadata["needs"] in (None, *subject.traits.serves)
            if served and live and others(getattr(subject.options, spec.name), spec):
                tried.add(name)
    assert all_ - tried == set()


def test_an_option_with_a_condition_is_tried_on_both_sides() -> None:
    subject = Subject("position", configure({"position": "rope"}))
    (theta,) = [s for s in dataclasses.fields(subject.part.options) if s.name == "theta"]
    live, idle = under(subject, theta)
    assert live is subject and idle is not None and idle.options.width == 2


def test_a_dead_key_is_refused_before_anything_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "model.d_ff=8: has no effect: no part reads it. Leave it out."
    for command in ("train ffn=none", "train -m ffn=none", "sweep ffn=none", "explain ffn=none"):
        assert main([*command.split(), "model.d_ff=8"]) == 2
        assert capsys.readouterr().err == f"ConfigError: {words}\n"
    assert main(["sweep", "ffn=relu,none", "model.d_ff=8,16"]) == 2
    assert f"ffn=none model.d_ff=8: {words}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
