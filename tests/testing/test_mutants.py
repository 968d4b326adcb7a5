"""The kit tested: every wrong part is found out, and every property finds one out.

`python tests/testing/test_mutants.py` prints which properties find out which mutant.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import kit_mutants_more  # noqa: E402, F401  adds to MUTANTS
from kit_mutants import MUTANTS  # noqa: E402

from encoderkit.testing.conform import examined  # noqa: E402
from encoderkit.testing.examine import PROPERTIES, applicable  # noqa: E402

ALL = tuple(MUTANTS)  # `clean_import` imports a module anew, which then adds its mutants again


@pytest.mark.parametrize("mutant", ALL, ids=str)
def test_a_mutant_is_killed(mutant):
    result = examined(mutant.subject(), PROPERTIES[mutant.by])
    assert result.status == "broken", str(result)
    assert result.outcome


def test_every_property_kills():
    assert set(PROPERTIES) - {mutant.by for mutant in ALL} == set()


def test_there_are_enough_of_them():
    assert len(ALL) >= 40


if __name__ == "__main__":
    total = {}
    for each in ALL:
        subject = each.subject()
        killers = [p.name for p in applicable(each.kind) if not examined(subject, p).good]
        for name in killers:
            total[name] = total.get(name, 0) + 1
        print(f"{each}: {len(killers)}: {' '.join(killers)}", flush=True)
    print(sorted(total.items(), key=lambda item: -item[1]))
