"""Every row of hazards.toml is proved by a test that names it, or says why it cannot occur."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("hazards.toml")
FORMS = ({"ids", "symptom", "right"}, {"ids", "symptom", "does_not_apply"})

Mark = tuple[str, str]  # an id, and where it stands


def rows(text: str) -> list[dict[str, Any]]:
    return list(tomllib.loads(text)["row"])


def marks(name: str, source: str) -> Iterator[Mark]:
    """Yield the ids that the tests of one file are marked with; '' for a mark that proves nothing.

    The mark of a test is a decorator with texts in it, for nothing here runs.
    """
    tree = ast.parse(source, name)
    tests = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name[:5] == "test_"]
    told = [call for test in tests for call in test.decorator_list if is_mark(call)]
    for call in (node for node in ast.walk(tree) if is_mark(node)):
        where = f"{name}:{call.lineno}"
        ids = call.args if isinstance(call, ast.Call) and call in told else []
        for each in ids or [ast.Constant("")]:
            known = isinstance(each, ast.Constant) and isinstance(each.value, str)
            yield (each.value if known else ""), where


def is_mark(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.hazard"


def faults(table: Sequence[dict[str, Any]], marked: Iterable[Mark]) -> list[str]:
    """Return in words where the table and the marks do not agree."""
    found, owner = [], {}
    for row in table:
        ids = row.get("ids") or ["a row without ids"]
        if set(row) not in FORMS or not all(row.values()):
            found.append(f"{ids[0]}: either `right` or `does_not_apply`, and a symptom")
        for name in ids:
            if owner.setdefault(name, row) is not row:
                found.append(f"{name}: stands in two rows")
    proved = []
    for name, where in marked:
        if (row := owner.get(name)) is None:
            found.append(f"{where}: {name!r} is in no row")
        elif "does_not_apply" in row:
            found.append(f"{where}: {name} is said not to apply")
        proved.append(row)
    open_rows = [row for row in table if "right" in row and row not in proved]
    return found + [f"{row['ids'][0]}: no test names it" for row in open_rows]


def test_every_row_that_applies_has_a_test_that_names_it() -> None:
    table = rows(TABLE.read_text("utf-8"))
    paths = sorted(TESTS.rglob("test_*.py"))
    found = [m for p in paths for m in marks(str(p.relative_to(TESTS)), p.read_text("utf-8"))]
    assert len(table) >= 40
    assert faults(table, found) == []


ROWS = """
[[row]]
ids = ["a#1", "a#2"]
symptom = "s"
right = "r"

[[row]]
ids = ["b#1"]
symptom = "s"
does_not_apply = "why"
"""


@pytest.mark.parametrize(
    ("more", "source", "words"),
    [
        ("", '@pytest.mark.hazard("a#2")\ndef test_x(): ...', []),
        ("", "def test_x(): ...", ["a#1: no test names it"]),
        ("", 'one = pytest.mark.hazard("a#1")', ["x.py:1: '' is in no row", "a#1: no test"]),
        ("", '@pytest.mark.hazard("a#1")\ndef helper(): ...', ["x.py:1: ''", "a#1: no test"]),
        ("", '@pytest.mark.hazard()\n@pytest.mark.hazard("a#1")\ndef test_x(): ...', ["x.py:1"]),
        ("", '@pytest.mark.hazard("a#1", name)\ndef test_x(): ...', ["x.py:1: '' is in no row"]),
        ("", '@pytest.mark.hazard("a#1", "c")\ndef test_x(): ...', ["x.py:1: 'c' is in no row"]),
        ("", '@pytest.mark.hazard("a#1", "b#1")\ndef test_x(): ...', ["x.py:1: b#1 is said not"]),
        ('does_not_apply = ""', "", ["b#1: either"]),
        ('right = "r"', '@pytest.mark.hazard("a#1", "b#1")\ndef test_x(): ...', ["b#1: either"]),
        ('[[row]]\nids = ["a#2"]\nsymptom = "s"\ndoes_not_apply = "w"', "", ["a#2: stands in two"]),
    ],
)
def test_what_does_not_agree_is_found(more: str, source: str, words: list[str]) -> None:
    kept = ROWS.replace('does_not_apply = "why"\n', "") if more.startswith("does") else ROWS
    source = source or '@pytest.mark.hazard("a#1")\ndef test_x(): ...'
    found = faults(rows(kept + more), marks("x.py", source))
    assert [word in each for word, each in zip(words, found, strict=False)] == [True] * len(words)
    assert bool(found) == bool(words)
