"""What records have in common, as data and in words."""

from __future__ import annotations

from typing import Any

import pytest

from encoderkit.report.about import About, about
from encoderkit.sweep.record import Record

TASK = {
    "metric": "loss",
    "lower_is_better": True,
    "trivial_loss": 2.48491,
    "baselines": {"uniform": 2.48491, "position": 1.33409},
}


def made(*seeds: int, **changes: Any) -> list[Record]:
    values: dict[str, Any] = {
        "label": "norm=a",
        "overrides": ["norm=a", "ffn=glu", "train.lr=1", "seed=0", "seeds=3", "sweep.name=s"],
        "budget": {"steps": 200, "batch": 16},
        "parts": {"task": {"part": "sort"}},
        "task": TASK,
    }
    return [
        Record(
            id=f"{seed}",
            seeds={"seed": seed},
            started="",
            reproduce="",
            **(values | changes),
        )
        for seed in seeds
    ]


def test_the_facts_as_data() -> None:
    assert about(made(2, 0, 1), ["norm"]) == About(
        task="sort",
        steps=200,
        batch=16,
        seeds=[0, 1, 2],
        fixed=["ffn=glu", "train.lr=1"],
        some={},
        metric="loss",
        lower_is_better=True,
        trivial_loss=2.48491,
        baselines={"uniform": 2.48491, "position": 1.33409},
    )


def test_the_facts_in_words() -> None:
    assert about(made(0, 1, 2), ["norm"]).lines() == [
        "sort: 200 steps of 16 sequences, seeds 0-2; lower loss is better "
        "(trivial 2.4849; uniform 2.4849, position 1.3341)",
        "fixed: ffn=glu train.lr=1",
    ]


@pytest.mark.parametrize(
    ("seeds", "words"), [([4], "seed 4"), ([0, 1], "seeds 0, 1"), ([0, 1, 3], "seeds 0, 1, 3")]
)
def test_seeds_in_words(seeds: list[int], words: str) -> None:
    assert f", {words}; " in about(made(*seeds), []).lines()[0]


def test_of_another_metric_the_known_numbers_are_losses() -> None:
    task = TASK | {"metric": "accuracy", "lower_is_better": False, "baselines": {}}
    (line, _) = about(made(0, task=task), []).lines()
    assert line.endswith("; higher accuracy is better (losses: trivial 2.4849)")


def test_what_records_do_not_agree_on_is_not_said() -> None:
    other = {"budget": {"steps": 1, "batch": 16}, "task": {}, "parts": {}}
    found = about(made(0, overrides=["norm=a"]) + made(1, overrides=["norm=b"], **other), ["norm"])
    assert (found.task, found.steps, found.batch, found.fixed) == ("", None, 16, [])
    assert (found.metric, found.lower_is_better, found.trivial_loss) == ("", None, None)
    assert found.lines() == ["seeds 0, 1"]


def test_what_only_some_variants_have_is_said_with_their_names() -> None:
    both = made(0, overrides=["norm=a"]) + made(
        0, overrides=["norm=lp", "norm.p=3"], label="norm=lp"
    )
    found = about(both, ["norm"])
    assert (found.fixed, found.some) == ([], {"norm.p=3": ["norm=lp"]})
    assert found.lines()[1:] == ["for some only: norm.p=3 (norm=lp)"]
    many = made(0) + [
        each for n in range(5) for each in made(0, overrides=["x=1"], label=f"norm={n}")
    ]
    assert about(many, []).lines()[-1].endswith("x=1 (norm=0, norm=1, norm=2 and 2 more)")


def test_what_the_names_say_already_is_not_said_again() -> None:
    mixed = made(0, overrides=["norm=a"]) + made(1, overrides=["ffn=b"], label="ffn=b")
    assert about(mixed, []).some == {}


def test_records_of_odd_content_are_described_as_far_as_they_go() -> None:
    odd = {
        "metric": "loss",
        "lower_is_better": True,
        "trivial_loss": None,
        "baselines": {"x": None},
    }
    found = about(made(0, task=odd, parts={"task": "sort"}), [])
    assert found.lines()[0] == "200 steps of 16 sequences, seed 0; lower loss is better"
