"""From a plain tree to a typed configuration, with all faults at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from encoderkit.api import Options, Part
from encoderkit.config.check import check, code_faults, fit, plain, show
from encoderkit.config.request import configure
from encoderkit.errors import ConfigError
from encoderkit.plugins import registry
from encoderkit.registry import Entry, Owner


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
        "norm=rmsnrm: must be one of layernorm, rmsnorm, batchnorm, scalenorm, dyt, derf, none",
        "Did you mean rmsnorm?",
        "ffn.width=-1: must be at least 1 (mlp, encoderkit",
        "ffn.x=1: there is no such option (mlp, encoderkit",
        "seed=-2: must be at least 0. Try seed=0.",
    ):
        assert part in text


@pytest.mark.hazard("omry/omegaconf#565", "hydra-ecosystem/hydra#3259")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"nrom": 1}, "nrom=1: there is no such key. Did you mean norm?"),
        ({"steps": 3}, "steps=3: there is no such key. Did you mean train.steps=3?"),
        ({"eps": 1e-5}, "eps=1e-5: there is no such key. Did you mean norm.eps=1e-5?"),
        ({"dropout": 0.1}, "Did you mean ffn.dropout=0.1 or attention.dropout=0.1?"),
        ({"schema": 7}, "schema=7: this encoderkit reads schema 1."),
        (
            {"norm": "rmsnorm"},
            "norm=rmsnorm: must be a choice, or a mapping with `part`. In a file, write "
            "`defaults: [override /norm: rmsnorm]`.",
        ),
        ({"train": 3}, "train=3: must be a mapping of options."),
        ({"model": {}}, "model.d_model: is missing and has no default"),
        ({"seed": "???"}, "seed: is missing and must be given"),
        ({"seed": 1.5}, "seed=1.5: must be an integer"),
        ({"seed": 2**63}, "seed=9223372036854775808: must be an integer of at most 64 bits"),
        ({"schema": "1"}, "schema=1: must be an integer. Try schema=1."),
        ({"_x": 1}, "_x=1: there is no such key."),
        ({"experiment": "card"}, "an experiment cannot be named in a mapping. Give strings: build"),
        ({"norm": {"part": None}}, "norm=null: must be one of"),
        ({"norm": {"part": ["rmsnorm"]}}, "norm=[rmsnorm]: must be one of"),
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
        (
            "model",
            {"sublayers": ["conv"]},
            "such as 0.5*ffn; not conv. Try model.sublayers=[attention,ffn].",
        ),
        ("train", {"accumulate": 99}, "train.accumulate=99: must be at most train.batch=16"),
        ("train", {"warmup": 999}, "train.warmup=999: must be at most train.steps=400."),
        ("model", {"final_norm": "maybe"}, "must be one of auto, true, false"),
        ("model", {"d_model": 10**9, "n_heads": 7}, "d_model=1000000000: must be at most 65536"),
        ("sweep", {"seeds": 0}, "sweep.seeds=0: names no seed. Try seeds=3."),
        ("sweep", {"seeds": []}, "sweep.seeds=[]: names no seed."),
        ("sweep", {"seeds": [1, 1]}, "sweep.seeds=[1,1]: names a seed twice."),
        ("sweep", {"seeds": [-1]}, "sweep.seeds=[-1]: a seed is at least 0."),
        ("sweep", {"seeds": [0, "a"]}, "must be an integer or a list, each item an integer"),
        ("sweep", {"seeds": 10**12}, "is more than 1000 seeds."),
        ("sweep", {"name": ""}, "sweep.name=: must be the name of one directory below runs."),
        ("sweep", {"name": ".."}, "sweep.name=..: must be the name of one directory"),
        ("sweep", {"name": "/abs"}, "sweep.name=/abs: must be the name of one directory"),
        ("sweep", {"dir": ""}, "sweep.dir=: must be a path. Try sweep.dir=runs/mine."),
    ],
)
def test_values_that_do_not_fit_together(group, values, expected):
    assert expected in words(**{group: tree()[group] | values})


@pytest.mark.hazard("own: nonsense values")
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("model.n_layers", 0, "model.n_layers=0: must be at least 1"),
        ("ffn.dropout", float("nan"), "ffn.dropout=nan: must be a finite number"),
        ("model.n_heads", True, "model.n_heads=true: must be an integer"),
        ("model.d_model", 8.0, "model.d_model=8.0: must be an integer"),
    ],
)
def test_nonsense_is_refused_in_every_form(name, value, expected):
    for request in ({name: value}, f"{name}={show(value)}"):
        with pytest.raises(ConfigError, match=expected):
            configure(request)


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
        (2**63, int),
        (10**400, float),
    ],
)
def test_nothing_is_guessed(value, hint):
    with pytest.raises(TypeError):
        fit(value, hint)


def test_values_that_fit():
    assert fit(1, float) == 1.0
    assert type(fit(np.int64(3), int)) is int
    assert type(fit(np.float32(0.5), float)) is float
    assert fit(None, int | None) is None
    assert fit([1, 2], int | list[int]) == [1, 2]
    assert fit({"a": 1}, dict[str, float]) == {"a": 1.0}


def test_code_is_found_at_any_depth():
    nested = {"a": [{"b": {"_target_": "x"}}]}
    assert [fault.where for fault in code_faults(nested)] == ["a[0].b._target_=x"]


def test_values_are_shown_as_they_are_typed():
    assert show([None, True, 1e-6, {"a": 8.0}]) == "[null,true,1e-6,{a:8.0}]"
    assert len(show("x" * 1000)) == 60


def test_endless_nesting_is_a_fault():
    endless = {}
    endless["a"] = endless
    assert "is nested more than 20 levels deep. Remove it." in words(norm=endless)
    assert "nested more than 20" in words(norm={"part": "layernorm", "eps": [endless]})


def test_an_array_is_a_fault_like_any_other():
    assert "norm.eps=[1 2]: must be a finite number" in words(
        norm={"part": "layernorm", "eps": np.array([1, 2])}
    )


@dataclass(slots=True, kw_only=True)
class Touchy(Options):
    """Options with an opinion of their own."""

    def __post_init__(self):
        raise RuntimeError("boo")


def test_options_that_refuse_themselves(monkeypatch):
    entry = Entry(Part("norm", "touchy", "a:B", "", Touchy), Owner("someone", "1.0"))
    monkeypatch.setitem(registry().entries, ("norm", "touchy"), entry)
    assert words(norm={"part": "touchy"}) == "norm: RuntimeError: boo (touchy, someone 1.0)."
