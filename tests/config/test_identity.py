"""What makes two cells the same."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoderkit.config.check import check, plain
from encoderkit.config.identity import identity, part_versions
from encoderkit.config.request import configure
from encoderkit.plugins import registry


def of(*request, data="d"):
    return identity(configure(*request), data)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"ffn": "geglu"}, {"ffn": {"part": "glu", "act": "gelu"}}),
        ({"norm": {"eps": 1}}, {"norm": {"eps": 1.0}}),
        ({"model": "tiny"}, {"model": {"d_ff": 256}}),
        ({}, {"run": {"threads": 2}, "sweep": {"dir": "elsewhere", "seeds": 5}}),
    ],
)
def test_the_same_cell(one, two):
    assert of(one) == of(two)


@pytest.mark.parametrize(
    "other",
    [{"norm": "rmsnorm"}, {"norm": {"eps": 1e-5}}, {"seed": 1}, {"train": {"lr": 0.1}}],
)
def test_another_cell(other):
    assert of(other) != of({})


def test_other_data_is_another_cell():
    assert of({}, data="a") != of({}, data="b")


@given(st.floats(1e-300, 1e300), st.integers(0, 2**40))
def test_identity_survives_storage(eps, seed):
    config = configure({"norm": {"eps": eps}, "seed": seed})
    again = check(json.loads(json.dumps(plain(config))), registry())
    assert identity(again, "d") == identity(config, "d")


def test_part_versions_name_what_ran():
    versions = part_versions(configure({"norm": "rmsnorm"}))
    assert versions["norm"]["part"] == "rmsnorm"
    assert versions["norm"]["distribution"] == "encoderkit"
    assert len(versions["norm"]["source"]) == 12
