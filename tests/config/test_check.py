"""From a plain tree to a typed configuration, with all faults at once."""

from __future__ import annotations

import pytest

from encoderkit.config.check import check, code_faults, fit, plain, show
from encoderkit.config.request import configure
from encoderkit.errors import ConfigError
from encoderkit.plugins import registry


def tree(**changes):
    return plain(configure({})) | changes


def words(**changes):
    with pytest.raises(ConfigError) as caught:
        check(tree(**changes), registry())
    return str(caught.value)


def test_plain_and_check_are_inverse():
    config = configure({"norm": "rmsnorm", "ffn": "geglu", "seed": 3})
    assert check(plain(config), registry()) == config


def test_every_fault_is_reported():
    text = words(norm={"part": "rmsnrm"}, ffn={"part": "mlp", "width": -1, "x": 1}, seed=-2)
    assert text.startswith("4 faults in this request:")
    for part in (
        "norm=rmsnrm: must be one of layernorm, rmsnorm, batchnorm, none",
        "Did you mean rmsnorm?",
        "ffn.width=-1: must be at least 1 (mlp, encoderkit",
        "ffn.x=1: there is no such option (mlp, encoderkit",
        "seed=-2: must be at least 0. Try seed=0.",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"nrom": 1}, "nrom=1: there is no such key. Did you mean norm?"),
        ({"schema": 7}, "schema=7: this encoderkit reads schema 1."),
        ({"norm": "rmsnorm"}, "norm=rmsnorm: must be a choice, or a mapping with `part`."),
        ({"train": 3}, "train=3: must be a mapping of options."),
        ({"model": {}}, "model.d_model: is missing and has no default"),
        ({"seed": "???"}, "seed: is missing and must be given"),
        ({"seed": 1.5}, "seed=1.5: must be an integer"),
        ({"norm": {"part": "layernorm", "_target_": "os.system"}}, "norm._target_=os.system"),
    ],
)
def test_faults_of_form(changes, expected):
    assert expected in words(**changes)


@pytest.mark.parametrize(
    ("group", "values", "expected"),
    [
        (
            "model",
            {"n_heads": 5},
            "model.n_heads=5: must divide model.d_model=64. Try model.n_heads=4.",
        ),
        ("model", {"sublayers": ["conv"]}, "a sublayer is one of attention, ffn, not conv."),
        ("train", {"accumulate": 99}, "train.accumulate=99: must be at most train.batch=16"),
        ("train", {"warmup": 999}, "train.warmup=999: must be at most train.steps=400."),
        ("model", {"final_norm": "maybe"}, "must be one of auto, true, false"),
    ],
)
def test_values_that_do_not_fit_together(group, values, expected):
    assert expected in words(**{group: tree()[group] | values})


def test_final_norm_takes_a_bool():
    made = check(tree(model=tree()["model"] | {"final_norm": True}), registry())
    assert made.model.final_norm == "true"


def test_d_ff_defaults_to_four_times_the_width():
    assert configure({"model": {"d_model": 96}}).model.d_ff == 384


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (1.0, int),
        (True, int),
        ("1", int),
        (True, float),
        (float("nan"), float),
        (float("inf"), float),
        ("1e-6", float),
        (1, bool),
        ("yes", bool),
        (3, str),
        (None, int),
        (5, str | None),
        ([1.5], list[int]),
        ("ab", list[str]),
        ({"a": "b"}, dict[str, float]),
        ([1], dict[str, float]),
    ],
)
def test_nothing_is_guessed(value, hint):
    with pytest.raises(TypeError):
        fit(value, hint)


def test_values_that_fit():
    assert fit(1, float) == 1.0
    assert fit(None, int | None) is None
    assert fit([1, 2], int | list[int]) == [1, 2]
    assert fit({"a": 1}, dict[str, float]) == {"a": 1.0}


def test_code_is_found_at_any_depth():
    nested = {"a": [{"b": {"_target_": "x"}}]}
    assert [fault.where for fault in code_faults(nested)] == ["a[0].b._target_=x"]


def test_values_are_shown_as_they_are_typed():
    assert show([None, True, 1e-6, {"a": 8.0}]) == "[null,true,1e-6,{a:8.0}]"
    assert len(show("x" * 1000)) == 60
