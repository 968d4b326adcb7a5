"""Every built-in part has every property of the kit; strangers' packages test their own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from kit_references import REFERENCES, rmsnorm, rope_interleaved, sinusoidal_half, t5

from encoderkit.api import KINDS
from encoderkit.errors import ConfigError
from encoderkit.plugins import registry
from encoderkit.testing import check, conformance
from encoderkit.testing.conform import examined, subjects
from encoderkit.testing.examine import PROPERTIES, applicable

BUILT_IN = [e.part for e in registry() if e.owner.distribution == "encoderkit"]
PARTS = [f"{part.kind}={part.name}" for part in BUILT_IN]
CASES = [(part, found) for part in PARTS for found in applicable(part.partition("=")[0])]


@pytest.fixture(scope="module")
def subject():
    known = {}

    def get(part):
        if part not in known:
            (known[part],) = subjects(part, reference=REFERENCES.get(part))
        return known[part]

    return get


@pytest.mark.parametrize(("part", "found"), CASES, ids=[f"{p}-{f.name}" for p, f in CASES])
def test_a_part_has_the_property(part, found, subject):
    result = examined(subject(part), found)
    assert result.good, str(result)


def test_no_part_that_computes_is_without_a_reference():
    streams = {name for name in PARTS if "exact" in names(name) and name not in NOTHING}
    assert streams == set(REFERENCES)


NOTHING = {"ffn=none", "attention=none"}


def names(part):
    return {found.name for found in applicable(part.partition("=")[0])}


def test_every_kind_has_properties():
    assert all(applicable(kind) for kind in KINDS)
    assert len(PROPERTIES) >= 50


TestRMSNorm = conformance("norm=rmsnorm", "norm.eps=1e-5")
TestSinusoidalHalf = conformance(
    "position=sinusoidal", "position.layout=half", reference=sinusoidal_half
)
TestRoPENeighbours = conformance(
    "position=rope", "position.layout=interleaved", reference=rope_interleaved
)
TestT5OfEachLayer = conformance("position=t5", "position.shared=false", reference=t5)
TestSwitch = conformance("ffn=moe", "ffn.top_k=1", "ffn.gated=true", "ffn.experts=4")
TestOffset = conformance("norm=rmsnorm", "norm.offset=1", reference=partial(rmsnorm, offset=1))


def test_the_one_line_makes_a_test_for_each_property():
    made = {name for name in vars(TestRMSNorm) if name.startswith("test_")}
    assert made == {f"test_{found.name}" for found in applicable("norm")}


def test_a_test_of_the_one_line_fails_in_words():
    wrong = conformance("norm=batchnorm", reference=lambda module, x, lengths: x * 2)
    with pytest.raises(AssertionError, match="exact.*off by.*smallest input: lengths=.1."):
        wrong().test_exact()


def test_the_one_line_takes_several_kinds():
    both = vars(conformance("norm=rmsnorm", "ffn=swiglu"))
    assert {"test_norm_exact", "test_ffn_exact"} <= set(both)


def test_results_are_data():
    results = list(check("init=xavier"))
    assert [result.name for result in results] == [found.name for found in applicable("init")]
    assert all(result.good and result.outcome for result in results)


@pytest.mark.parametrize(
    ("request_", "words"),
    [((), "names no part"), (("norm=rmsnorm", "model.d_model=8"), "model.d_model=8: is no part")],
)
def test_a_request_must_name_parts_and_nothing_else(request_, words):
    with pytest.raises(ConfigError, match=words):
        list(check(*request_))
    with pytest.raises(ConfigError, match=words):
        conformance(*request_)().test_request() if not request_ else subjects(*request_)


def test_a_part_for_cuda_is_asked_what_a_cpu_can_answer():
    results = {result.name: result for result in check("attention=flash")}
    asked = {name for name, result in results.items() if result.status != "not asked"}
    assert asked == {"elsewhere", "clean_import", "torch_free_catalogue"}
    assert all(results[name].status == "holds" for name in asked)
    assert results["exact"].outcome == "it runs on cuda, and this is a CPU"


def test_a_part_is_tried_in_the_dtypes_that_it_names():
    (subject,) = subjects("norm=rmsnorm")
    traits = replace(subject.traits, precisions=frozenset({"float32", "bfloat16"}))
    entry = replace(subject.chosen.entry, part=replace(subject.part, traits=traits))
    narrow = subject.with_chosen(replace(subject.chosen, entry=entry))
    found = PROPERTIES["shape_and_dtype"]
    assert {str(case.dtype) for case in narrow.cases(found.cases)} == {
        "torch.float32",
        "torch.bfloat16",
    }
    result = examined(narrow, PROPERTIES["gradients"])
    assert (result.status, result.good) == ("not asked", True)
    assert result.outcome == "it declares none of the dtypes that this is tried in"


def test_a_preset_is_checked_as_the_part_it_names():
    (subject,) = subjects("ffn=geglu")
    assert (subject.part.name, subject.options.act) == ("glu", "gelu")
