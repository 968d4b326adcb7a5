"""Strings, mappings, DictConfigs and typed options lead to one configuration."""

from __future__ import annotations

import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from encoderkit.config.request import configure
from encoderkit.config.schema import ModelOptions
from encoderkit.errors import ConfigError
from encoderkit.plugins import registry

WANTED = ("norm=rmsnorm", "norm.eps=1e-5", "ffn=swiglu", "model.d_model=128", "seed=2")


@pytest.mark.parametrize(
    "request_",
    [
        {
            "norm": {"part": "rmsnorm", "eps": 1e-5},
            "ffn": "swiglu",
            "model": {"d_model": 128},
            "seed": 2,
        },
        {"norm": "rmsnorm", "norm.eps": 1e-5, "ffn": "swiglu", "model.d_model": 128, "seed": 2},
        {
            "norm.eps": 1e-5,
            "norm": "rmsnorm",
            "ffn": {"part": "swiglu"},
            "model.d_model": 128,
            "seed": 2,
        },
        OmegaConf.create(
            {
                "width": 128,
                "norm": {"part": "rmsnorm", "eps": 1e-5},
                "ffn": "swiglu",
                "model": {"d_model": 128, "preset": "tiny"},
                "seed": 2,
            }
        ),
    ],
)
def test_all_forms_agree(request_):
    if "width" in request_:
        del request_["width"]
    assert configure(request_) == configure(*WANTED)


def test_typed_options():
    options = registry().entries[("norm", "rmsnorm")].part.options(eps=1e-5)
    model = ModelOptions(d_model=128, n_layers=3, n_heads=4)
    made = configure({"norm": options, "ffn": "swiglu", "model": model, "seed": 2})
    assert made == configure(*WANTED)


def test_typed_options_that_no_part_takes():
    with pytest.raises(ConfigError, match="0 parts take these options"):
        configure({"norm": ModelOptions(d_model=1, n_layers=1, n_heads=1)})


def test_a_config_passes_through():
    made = configure({})
    assert configure(made) is made


def test_anything_else_is_refused():
    with pytest.raises(ConfigError, match="strings, or one mapping; not int, str"):
        configure(3, "norm=rmsnorm")


def test_all_faults_of_a_mapping():
    with pytest.raises(ConfigError) as caught:
        configure({"norm": "rmsnrm", "ffn": {"part": "swiglu", "width": -1}, "zzz": 1})
    assert [f.where for f in caught.value.faults] == ["norm=rmsnrm", "ffn.width=-1", "zzz=1"]


@pytest.mark.parametrize("value", ["abc", float("nan"), -1, None])
def test_mapping_and_strings_use_the_same_words(value):
    from encoderkit.config.check import show

    with pytest.raises(ConfigError) as one:
        configure({"norm": {"eps": value}})
    with pytest.raises(ConfigError) as two:
        configure(f"norm.eps={show(value)}")
    assert str(one.value) == str(two.value)


def test_mappings_need_no_hydra():
    code = (
        "import encoderkit, sys; encoderkit.configure({'norm': 'rmsnorm', 'ffn': 'swiglu'});"
        "sys.exit('hydra' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_short_forms_are_the_same_in_a_mapping():
    assert configure({"seeds": 3, "jobs": 2}) == configure("seeds=3", "jobs=2")


def test_one_key_is_given_once():
    with pytest.raises(
        ConfigError, match=r"model.d_model: model.d_model was given before. Keep one."
    ):
        configure({"model": {"d_model": 8}, "model.d_model": 64})
    with pytest.raises(ConfigError, match="norm.part: norm.part was given before"):
        configure({"norm": "rmsnorm", "norm.part": "layernorm"})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"norm": "${x}"}, "norm: Interpolation key 'x' not found."),
        ({"norm": {"eps": "${.eps}"}}, "norm.eps: Recursive interpolation detected."),
    ],
)
def test_an_interpolation_that_fails_is_a_fault(content, words):
    with pytest.raises(ConfigError) as caught:
        configure(OmegaConf.create(content))
    assert str(caught.value) == words
