from __future__ import annotations

import pytest

from encoderkit.config.request import configure
from encoderkit.errors import ConfigError
from encoderkit.nn.build import build_model
from encoderkit.sweep import variant
from encoderkit.sweep.variant import Counts, Facts, Variant, what
from encoderkit.train.optim import decay_groups

SMALL = ["model.n_layers=1", "model.d_model=16"]


def facts(*words: str, flops: bool = True) -> Facts:
    return Counts(flops).facts(configure(*SMALL, *words), (5, 3))


def test_facts_are_those_of_the_model_that_will_be_built() -> None:
    found = facts("ffn=relu", "model.d_ff=32", "norm=rmsnorm")
    model = build_model(configure(*SMALL, "ffn=relu", "model.d_ff=32", "norm=rmsnorm"), 5, 3)
    shapes = {path: tuple(p.shape) for path, p in model.named_parameters()}
    assert found.shapes == shapes
    assert found.parameters == sum(p.numel() for p in model.parameters())
    outside = sum(p.numel() for part in (model.embed, model.head) for p in part.parameters())
    assert found.stack == found.parameters - outside == 4 * 256 + 3 * 16 + 2 * 16 * 32 + 32 + 16
    assert found.gains == {1.0}
    assert found.decayed == set(decay_groups(model)["decay"]) > {"layers.0.ffn.branch.up.weight"}


def test_flops_are_counted_only_when_asked_for() -> None:
    assert facts("ffn=relu", "model.d_ff=16").flops == 8 * 256 + 4 * 128 * 16 + 4 * 256
    assert facts(flops=False).flops is None


def test_flops_are_unknown_where_128_tokens_are_too_many() -> None:
    assert facts("position=learned", "position.max_len=64").flops is None
    assert facts("position=learned", "position.max_len=128").flops is not None


def test_flops_are_unknown_where_a_part_asks_for_data(monkeypatch: pytest.MonkeyPatch) -> None:
    from encoderkit.nn import cost

    monkeypatch.setattr(cost, "flops", lambda stack, length: {"a": 1.0, "b": float("nan")})
    assert facts().flops is None


def test_a_model_is_built_once_for_whatever_does_not_change_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 0
    whole = variant._counted

    def counted(*request: object) -> Facts:
        nonlocal count
        count += 1
        return whole(*request)  # type: ignore[arg-type]

    monkeypatch.setattr(variant, "_counted", counted)
    counts = Counts(flops=False)
    for words in ([], ["train.lr=1"], ["seed=3"], ["init=small"], ["seed_init=4"], ["train=short"]):
        counts.facts(configure(*SMALL, *words), (5, 3))
    assert count == 1
    for words in (["norm=rmsnorm"], ["norm.eps=1e-3"], ["model.d_ff=8"]):
        counts.facts(configure(*SMALL, *words), (5, 3))
    counts.facts(configure(*SMALL), (5, 4))
    assert count == 5


def test_a_fault_of_the_build_is_raised() -> None:
    with pytest.raises(ConfigError, match="no part asks for it"):
        facts("attention=none", "position=rope")


def test_seeds_that_follow_are_left_out_and_others_are_not() -> None:
    def tree(*words: str) -> dict[str, object]:
        config = configure(*SMALL, *words)
        made = Variant(label="x", point=words, config=config, seeds=[0], facts=facts())
        return what(made)

    assert tree("seed=3") == tree("seed=4")
    assert tree("seed=3", "seed_data=4")["seed_data"] == 4
    assert tree("run.threads=2", "seeds=3") == tree()
    assert "seed" not in tree("seed_init=9")
