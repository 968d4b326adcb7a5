"""Variants of one seed share all the random numbers that they can share.

That a part which draws in its constructor reaches no other one is shown in tests/nn/test_build.py,
`test_what_a_part_draws_itself_is_kept_and_reaches_no_other`.
"""

from __future__ import annotations

import functools
import itertools

import pytest
import torch

from encoderkit.config.presets import Presets
from encoderkit.config.request import configure
from encoderkit.data import Batch, build_task
from encoderkit.nn.build import build_model
from encoderkit.nn.model import EncoderModel
from encoderkit.plugins import registry
from encoderkit.train import fit

KINDS = ("norm", "placement", "ffn", "attention", "position")
SMALL = ["model.d_model=16", "model.n_layers=2", "train=smoke", "run.device=cpu"]


def choices(kind: str) -> list[str]:
    """Return every choice of a kind that comes with encoderkit, presets too."""
    groups = Presets(registry()).groups[kind]
    parts = registry().entries
    return [
        name
        for name, source in groups.items()
        if source.owner.startswith("encoderkit ")
        and ((kind, name) not in parts or "cpu" in parts[kind, name].part.traits.devices)
    ]


PAIRS = [
    (f"{kind}={one}", f"{kind}={two}")
    for kind in KINDS
    for one, two in itertools.combinations(choices(kind), 2)
]


COMPANY = {
    "placement=rezero": ["norm=none"],  # it holds no norm
    "attention=none": ["position=none"],  # nobody would read it
}


@functools.cache
def built(words: tuple[str, ...]) -> EncoderModel:
    more = [each for word in words for each in COMPANY.get(word, [])]
    config = configure(*SMALL, *words, *more)
    return build_model(config, 7, 5)


def gains(model: EncoderModel) -> set[float]:
    return {float(getattr(module, "branch_gain", 1.0)) for module in model.modules()} - {1.0}


def test_every_kind_has_its_pairs() -> None:
    assert {pair[0].partition("=")[0] for pair in PAIRS} == set(KINDS)
    assert len(PAIRS) > 100


@pytest.mark.hazard("own: a part that draws shifts later layers")
@pytest.mark.parametrize("init", ["xavier", "torch"])
def test_what_two_variants_both_have_starts_with_the_same_bits(init: str) -> None:
    for pair in PAIRS:
        one, two = (built((text, f"init={init}")) for text in pair)
        ours, theirs = one.state_dict(), two.state_dict()
        shared = [p for p in ours if p in theirs and ours[p].shape == theirs[p].shape]
        assert {"embed.weight", "head.weight", "head.bias"} <= set(shared)
        for path in shared:
            if ".branch." in path and gains(one) != gains(two):
                continue  # declared, and listed by the plan
            assert torch.equal(ours[path], theirs[path]), (*pair, path)


def test_drawn_maps_are_among_what_is_shared() -> None:
    ours, theirs = (built((text, "init=xavier")).state_dict() for text in ("ffn=gelu", "ffn=glu"))
    path = "layers.1.attention.branch.q.weight"
    assert torch.equal(ours[path], theirs[path]) and ours[path].std() > 0.1
    assert (
        ours["layers.0.ffn.branch.up.weight"].shape != theirs["layers.0.ffn.branch.up.weight"].shape
    )


def test_another_seed_draws_other_bits() -> None:
    ours, other = (built((f"seed={seed}",)).state_dict() for seed in (0, 1))
    path = "layers.1.attention.branch.q.weight"
    assert not torch.equal(ours[path], other[path])


Handed = list[tuple[int, torch.Tensor, list[int], torch.Tensor]]


def trained(*words: str) -> tuple[EncoderModel, Handed]:
    """Return a model after a few steps, and the batches that its task handed out."""
    config = configure(*SMALL, "train.steps=4", "train.warmup=1", "run.checkpoint_every=0", *words)
    task = build_task(config)
    handed: Handed = []
    whole = task.batch

    def batch(k: int, size: int) -> Batch:
        found = whole(k, size)
        handed.append((k, found.tokens.clone(), list(found.lengths), found.targets.clone()))
        return found

    task.batch = batch  # type: ignore[method-assign]
    model = build_model(config, task.vocab, task.outputs)
    fit(model, task, config.train, config.run, None)
    return model, handed


@pytest.mark.parametrize("task", ["sort", "mlm_pydoc"])
def test_variants_are_trained_on_the_same_batches(task: str) -> None:
    _, base = trained(f"task={task}")
    assert [k for k, *_ in base] == [0, 1, 2, 3]
    for words in (
        ["norm=batchnorm", "ffn.dropout=0.3"],
        ["ffn=swiglu", "placement=post", "train.eval_every=1"],
        ["position=learned", "init=torch", "seed_init=5", "train.accumulate=2"],
    ):
        for ours, theirs in zip(base, trained(f"task={task}", *words)[1], strict=True):
            assert ours[0] == theirs[0] and ours[2] == theirs[2]
            assert torch.equal(ours[1], theirs[1]) and torch.equal(ours[3], theirs[3])
    _, other = trained(f"task={task}", "seed=1")
    assert not torch.equal(base[0][1], other[0][1])


@pytest.mark.parametrize(
    "words",
    [["ffn.dropout=0.2", "attention=naive", "attention.dropout=0.2"], ["norm=batchnorm"]],
    ids=["dropout", "running statistics"],
)
def test_evaluating_every_step_or_never_is_the_same_training(words: list[str]) -> None:
    often, never = (trained(*words, f"train.eval_every={n}")[0].state_dict() for n in (1, 0))
    assert often.keys() == never.keys()
    for path, value in often.items():
        assert torch.equal(value, never[path]), path
    start = built(tuple(words)).state_dict()
    assert not torch.equal(
        start["layers.0.ffn.branch.up.weight"], often["layers.0.ffn.branch.up.weight"]
    )
