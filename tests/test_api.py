"""Options and their ranges."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from encoderkit.api import Options, Range, conditions, option


@dataclass(slots=True, kw_only=True)
class Some(Options):
    """Options with each kind of default."""

    needed: int = option(..., "required")
    names: list[str] = option(["a"], "a list")


def test_required_options_must_be_given():
    with pytest.raises(TypeError):
        Some()


def test_list_defaults_are_not_shared():
    one, two = Some(needed=1), Some(needed=1)
    one.names.append("b")
    assert two.names == ["a"]


@pytest.mark.parametrize(
    ("allowed", "good", "bad", "words"),
    [
        (Range(above=0), 1e-9, 0, "must be above 0"),
        (Range(at_least=1), 1, 0, "must be at least 1"),
        (Range(below=1), 0.9, 1, "must be below 1"),
        (Range(at_most=1), 1, 1.1, "must be at most 1"),
        (Range(choices=("a", "b")), "a", "c", "must be one of a, b"),
    ],
)
def test_ranges(allowed, good, bad, words):
    assert allowed.refusal(good) == ""
    assert allowed.refusal(bad) == words


@pytest.mark.parametrize(
    "allowed", [Range(above=0), Range(at_least=0), Range(below=1), Range(at_most=1)]
)
def test_nan_is_outside_every_bound(allowed):
    assert allowed.refusal(math.nan)


@pytest.mark.parametrize(
    ("value", "usual", "holds"),
    [
        ("null", None, True),
        ("null", 0, False),
        ("true", True, True),
        ("1", True, False),
        ("2", 2, True),
        ("1e-6", 1e-6, True),
        ("2", "2", True),
        ("glu", "glu", True),
        ("glu", 3, False),
        ("[1]", [1], True),
    ],
)
def test_a_condition_compares_as_one_types(value, usual, holds):
    (same,), (other,) = conditions(f"norm.x={value}"), conditions(f"norm.x!={value}")
    assert same.holds(usual) is holds
    assert other.holds(usual) is not holds


def test_conditions_are_joined():
    found = conditions("ffn.part=glu and train.schedule!=constant")
    assert [(c.path, c.equal, c.value) for c in found] == [
        ("ffn.part", True, "glu"),
        ("train.schedule", False, "constant"),
    ]
