"""The ledger notes every part that runs, once, and leaves no trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from encoderkit.api import KINDS, Options, Part
from encoderkit.config.request import configure
from encoderkit.config.schema import Chosen, Config
from encoderkit.data.build import build_task
from encoderkit.nn import FFN, Placement, Position, Tables
from encoderkit.nn.build import build_model
from encoderkit.plugins import registry
from encoderkit.registry import Entry, Owner
from encoderkit.train import Watch, fit
from encoderkit.train.ledger import Ledger

SMALL: dict[str, Any] = {
    "model": {"d_model": 8, "n_layers": 2},
    "train": {"steps": 3, "batch": 2, "warmup": 1, "eval_every": 2, "judge_stall": False},
    "task": {"part": "sort", "length": 4, "symbols": 3, "eval_sequences": 4},
    "run.device": "cpu",
}


def run(config: Config, directory: Path | None = None, watch: Watch | None = None) -> Any:
    task = build_task(config)
    model = build_model(config, task.vocab, task.outputs)
    outcome = fit(model, task, config.train, config.run, directory, watch=watch)
    return model, outcome


def traces(model: torch.nn.Module) -> list[str]:
    """Return what a ledger could have left on a model."""
    hooked = [name for name, module in model.named_modules() if module._forward_pre_hooks]
    return hooked + [
        name for name, module in model.named_modules() if {"embed", "prepare"} & vars(module).keys()
    ]


EVERY = [
    (entry.part.kind, entry.part.name)
    for entry in registry()
    if entry.owner.distribution == "encoderkit" and entry.part.kind not in ("task", "init")
]


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=lambda word: str(word))
def test_every_part_of_ours_runs(kind: str, name: str) -> None:
    request = {**SMALL, kind: name}
    part = registry().entries[kind, name].part
    if "cpu" not in part.traits.devices and not torch.cuda.is_available():
        pytest.skip("its trait says that it runs on CUDA only")
    options = {spec.name for spec in dataclasses.fields(part.options)}
    if (kind, name) != ("norm", "none") and (kind != "attention" or "qk_norm" in options):
        request["attention.qk_norm"] = "head"
    model, outcome = run(configure(request))
    assert outcome.ran == {"train": sorted(model.slots), "eval": sorted(model.slots)}
    assert not traces(model) and len(model.slots) > 5
    assert {label.partition("=")[0] for label in model.slots.values()} <= set(KINDS)


def test_parallel_sublayers_rules_and_embedding_norms_count() -> None:
    changes = {
        "model.sublayers": ["attention+ffn", "0.5*ffn"],
        "model.layers": [{"at": 0, "position": "rope"}, {"at": 1, "position": "none"}],
        "model.embed_norm": "rmsnorm",
        "position": "learned",
    }
    model, outcome = run(configure(SMALL | {"model": SMALL["model"]} | changes))
    assert {
        *["position.learned", "position.rope", "position.none", "embed_norm", "final"],
        *["layers.0.attention_ffn.branch.ffn", "layers.1.ffn.placement.before"],
    } <= model.slots.keys()
    assert outcome.ran == {"train": sorted(model.slots), "eval": sorted(model.slots)}


def test_numbers_are_the_same_without_a_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configure(SMALL | {"ffn.dropout": 0.1, "norm": "batchnorm", "position": "rope"})
    with_, one = run(config)
    monkeypatch.setattr(Ledger, "watching", lambda self, mode: nullcontext())
    without, two = run(config)
    assert two.ran == {} and one.metrics == two.metrics
    state = without.state_dict()
    assert all(torch.equal(t, state[name]) for name, t in with_.state_dict().items())


class StopAt(Watch):
    """Stops when a step is done, or when it has been asked often enough."""

    def __init__(self, step: int = 0, asked: int = 0) -> None:
        self.step, self.asked, self.seen, self.count = step, asked, 0, 0

    def stop(self) -> str:
        self.count += 1
        return "enough" if self.seen == self.step > 0 or self.count == self.asked > 0 else ""

    def progress(self, step: int, loss: float, tokens_per_second: float) -> None:
        self.seen = step


def test_a_run_that_was_stopped_before_its_last_evaluation_still_knows(tmp_path: Path) -> None:
    config = configure(SMALL)
    _, first = run(config, tmp_path, StopAt(step=3))
    assert (first.state, first.step) == ("interrupted", 3)
    model, second = run(config, tmp_path)
    assert second.state == "ok"
    assert second.ran == {"train": sorted(model.slots), "eval": sorted(model.slots)}
    _, third = run(config, tmp_path)  # trains and evaluates nothing
    assert third.ran == second.ran


def test_a_run_that_was_stopped_at_once_has_run_nothing(tmp_path: Path) -> None:
    model, outcome = run(configure(SMALL), tmp_path, StopAt(asked=1))
    assert (outcome.step, outcome.ran) == (0, {"train": []})
    assert not traces(model)


class Skips(Placement):
    """Never calls its branch."""

    def __init__(self, opts: Any, site: Any) -> None:
        super().__init__()

    def forward(self, x: Any, f: Any, ctx: Any) -> Any:
        return x


class Late(FFN):
    """Rests in the first step, and in evaluation."""

    def __init__(self, opts: Any, site: Any) -> None:
        super().__init__()
        self.inner, self.spare = site.norm(), [site.norm()]  # a list hides a module from torch

    def forward(self, x: Any, ctx: Any) -> Any:
        return self.inner(x, ctx) if ctx.step == 1 else x


class Unread(Position):
    """Prepares what nobody reads."""

    def __init__(self, opts: Any, site: Any) -> None:
        super().__init__()

    def prepare(self, ctx: Any) -> Tables:
        return Tables()


class Asks(FFN):
    """Asks for its position, and never reads it."""

    def __init__(self, opts: Any, site: Any) -> None:
        super().__init__()
        site.position()

    def forward(self, x: Any, ctx: Any) -> Any:
        return x


def strange(request: Mapping[str, Any] = SMALL, **classes: type) -> Config:
    """Return the small configuration with parts of somebody else's in it."""
    chosen = {}
    for kind, cls in classes.items():
        part = Part(kind, "strange", f"here:{cls.__name__}", "")  # type: ignore[arg-type]
        chosen[kind] = Chosen(Entry(part, Owner("strange-parts", "1")), Options())
    return dataclasses.replace(configure(dict(request)), **chosen)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the parts of this file be found, however pytest has imported it."""
    monkeypatch.setattr(Entry, "load", load_here)


LOAD = Entry.load


def load_here(self: Entry) -> Any:
    name = (self.part.target or "").partition(":")[2]
    return globals()[name] if self.part.name == "strange" else LOAD(self)


def test_what_is_never_called_is_not_in_the_ledger() -> None:
    model, outcome = run(strange(SMALL | {"norm": "none"}, placement=Skips))
    idle = {path for path in model.slots if ".branch" in path}
    assert len(idle) == 4
    assert set(model.slots) - set(outcome.ran["train"]) == idle
    assert outcome.ran["train"] == outcome.ran["eval"] and not traces(model)


def test_a_part_that_runs_later_is_seen_and_one_that_stands_nowhere_is_not() -> None:
    model, outcome = run(strange(ffn=Late))
    inner = {f"layers.{n}.ffn.branch.inner" for n in (0, 1)}
    spare = {f"layers.{n}.ffn.branch.norm_2" for n in (0, 1)}
    assert inner | spare <= model.slots.keys()
    assert set(outcome.ran["train"]) == model.slots.keys() - spare
    assert set(outcome.ran["eval"]) == model.slots.keys() - spare - inner
    assert not traces(model)


def test_a_position_ran_when_it_was_read() -> None:
    model, outcome = run(strange(position=Unread))
    assert "position.strange" in outcome.ran["train"] == sorted(model.slots)
    request = SMALL | {"attention": "none"}
    model, outcome = run(strange(request, position=Unread, ffn=Asks))
    assert set(model.slots) - set(outcome.ran["train"]) == {"position.strange"}
