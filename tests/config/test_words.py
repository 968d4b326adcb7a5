"""Override strings read one by one: what test_compose does not see from outside."""

from __future__ import annotations

import pytest

from encoderkit.config.presets import Presets
from encoderkit.config.words import MOST_POINTS, Words, is_group, is_listed
from encoderkit.errors import Fault
from encoderkit.plugins import registry


@pytest.fixture(scope="module")
def words() -> Words:
    return Words(Presets(registry()))


def values(words: Words, text: str) -> tuple[list[str], list[str]]:
    (item,), faults = words.parse([text])
    assert faults == []
    found: list[Fault] = []
    return words.values(item, found), [str(fault) for fault in found]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("norm.eps=1e-3", ["1e-3"]),  # one value stays as typed
        ("norm.eps=1e-3,0.001,1e-05,1e-10", ["0.001", "1e-5", "1e-10"]),
        ("ffn.bias=true,False,TRUE", ["true", "false"]),
        ("ffn.width=null,64", ["null", "64"]),
        ("ffn.act='True',relu", ["'True'", "relu"]),
        ("ffn.act='1e-05',relu", ["'1e-05'", "relu"]),
        ("seed=range(0,6,2)", ["0", "2", "4"]),
        ("norm=choice(rmsnorm,none)", ["rmsnorm", "none"]),
        ("norm=sort(rmsnorm,none)", ["none", "rmsnorm"]),
        ("ffn=glob(*,exclude=[*glu,m*,b*])", ["relu", "relu2", "gelu", "silu", "none"]),
        ("model.layers=[{at:0,norm:none}],[]", ["[{at:0,norm:none}]", "[]"]),
    ],
)
def test_values_are_written_as_one_would_type_them(
    words: Words, text: str, wanted: list[str]
) -> None:
    found, faults = values(words, text)
    assert (sorted(found), faults) == (sorted(wanted), [])


def test_an_axis_that_never_ends_is_cut_where_no_plan_reaches(words: Words) -> None:
    found, _ = values(words, "train.lr=range(0,1e9)")
    assert len(found) == MOST_POINTS + 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("train.lr=interval(0,1)", "an interval has no points. Use range(start,stop,step)."),
        ("train=glob(x*)", "matches nothing. There are full, short, smoke."),
        ("train.lr=range(1,1)", "matches nothing."),
        ("train=short,shrt", "must be one of full, short, smoke. Did you mean short?"),
    ],
)
def test_an_axis_that_spans_nothing_is_a_fault(words: Words, text: str, fault: str) -> None:
    _, (found,) = values(words, text)
    assert found.endswith(fault)


def test_a_short_form_is_its_long_form(words: Words) -> None:
    parsed, faults = words.parse(["seeds=2", "jobs=1", "match=params", "budget=tokens"])
    assert faults == []
    keys = [item.key_or_group for item in parsed]
    assert keys == ["sweep.seeds", "sweep.jobs", "sweep.match", "sweep.budget"]


@pytest.mark.parametrize("text", ["sweep.name=null", "sweep.name='a b'", "sweep.name=${seed}"])
def test_a_text_may_be_null_quoted_or_another_value(words: Words, text: str) -> None:
    (item,), faults = words.parse([text])
    wanted = {"null": None, "'a b'": "a b"}.get(text.partition("=")[2], "${seed}")
    assert faults == [] and item.value() == wanted


def test_groups_and_lists_are_told_apart(words: Words) -> None:
    parsed, _ = words.parse(["norm=a,b", "train.lr=1,2", "seed=range(1,3)", "ffn=relu"])
    assert [is_group(item) for item in parsed] == [True, False, False, True]
    assert [is_listed(item) for item in parsed] == [False, True, False, False]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("+model.n_layers=1", "Type model.n_layers=1."),
        ("+train.steps=1", "Type train.steps=1."),
        ("+placement.strat=1", "Did you mean placement.start?"),
        ("+zzzzzz=1", "`encoderkit show` lists the keys."),
    ],
)
def test_an_added_key_is_told_its_plain_form(words: Words, text: str, hint: str) -> None:
    parsed, (fault,) = words.parse([text])
    assert parsed == [] and fault.hint == hint
