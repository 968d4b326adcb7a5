from __future__ import annotations

from encoderkit.config.request import configure
from encoderkit.nn.difference import Difference, difference


def between(a: str, b: str) -> Difference:
    return difference(configure(*a.split()), configure(*b.split()))


def test_two_norms() -> None:
    found = between("norm=layernorm", "norm=rmsnorm norm.eps=1e-5")
    assert list(found.values.items()) == [
        ("norm.part", {"a": "layernorm", "b": "rmsnorm"}),
        ("norm.eps", {"a": 1e-6, "b": 1e-5}),
        ("norm.bias", {"a": True}),
        ("norm.offset", {"b": 0.0}),
    ]
    assert [line[:14] for line in found.equation] == ["- N is layerno", "+ N is rmsnorm"]
    rows = [(pair.a, pair.b) for pair in found.rows]
    assert [(a and a.parameters, b and b.parameters) for a, b in rows] == [
        (384, 192),
        (384, 192),
        (128, 64),
    ]
    assert found.a.parameters - found.b.parameters == 7 * 64
    assert found.a.flops == found.b.flops == 393_216


def test_equal_configurations() -> None:
    found = between("ffn=relu", "ffn=mlp ffn.act=relu")
    assert (found.values, found.equation, found.rows) == ({}, [], [])
    assert found.a == found.b


def test_a_row_differs_by_what_is_in_it_and_not_by_its_share() -> None:
    found = between("", "ffn.width=100")
    assert [pair.a and (pair.a.slot, pair.a.role) for pair in found.rows] == [("ffn", "branch")]
    assert found.a.rows[1].share != found.b.rows[1].share
    (pair,) = between("attention=naive", "attention=sdpa").rows
    assert pair.a and pair.b and (pair.a.part, pair.b.part) == ("naive", "sdpa")
    assert (pair.a.shape, pair.a.flops) == (pair.b.shape, pair.b.flops)


def test_what_one_side_lacks() -> None:
    found = between("placement=post", "model.sublayers=[attention,ffn,ffn]")
    lacking = [pair.b.slot for pair in found.rows if pair.a is None and pair.b]
    assert lacking == ["ffn_2", "ffn_2", "final"]
    assert found.values["model.sublayers"]["b"] == ["attention", "ffn", "ffn"]
    assert "+ then x = N(x)" in found.equation and "-   x = N(x + ffn(x))" in found.equation
    back = between("model.sublayers=[attention,ffn,ffn]", "placement=post")
    assert [pair.a.slot for pair in back.rows if pair.b is None and pair.a] == [
        "ffn_2",
        "ffn_2",
        "final",
    ]
    assert "- then x = N(x)" in back.equation


def test_values_that_no_part_feels() -> None:
    found = between("train.lr=1e-3", "seed=3")
    assert found.values == {
        "train.lr": {"a": 1e-3, "b": 3e-3},
        "seed": {"a": 0, "b": 3},
        "seed_init": {"a": 0, "b": 3},
        "seed_data": {"a": 0, "b": 3},
    }
    assert (found.equation, found.rows) == ([], [])
