"""Every part in the registry has every property of the kit."""

from __future__ import annotations

import pytest
from kit_references import REFERENCES

from encoderkit.api import KINDS
from encoderkit.plugins import registry
from encoderkit.testing.conform import examined, subjects
from encoderkit.testing.examine import PROPERTIES, applicable

PARTS = [f"{e.part.kind}={e.part.name}" for e in registry()]
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
