"""`plugins/README.md` says what is so: the example is the example, and the reference is whole."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from encoderkit import api

PLUGINS = Path(__file__).resolve().parent.parent / "plugins"
GUIDE = (PLUGINS / "README.md").read_text("utf-8")


def fields(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


@pytest.mark.parametrize(
    "name",
    [
        *["encoderkit_prmsnorm/__init__.py", "encoderkit_prmsnorm/norm.py", "pyproject.toml"],
        "tests/test_conformance.py",
    ],
)
def test_the_guide_shows_the_example_as_it_is(name: str) -> None:
    shown = re.findall(r"```\w+\n(.*?)```", GUIDE, re.S)
    assert (PLUGINS / "encoderkit-prmsnorm" / name).read_text("utf-8") in shown


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("Hooks", [name for name, _ in inspect.getmembers(api.Hooks, inspect.isfunction)]),
        ("Part", fields(api.Part)),
        ("Kinds", list(api.KINDS)),
        ("Traits", fields(api.Traits)),
    ],
)
def test_a_table_of_the_guide_lists_all_there_is(section: str, names: list[str]) -> None:
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## )", GUIDE, re.S | re.M)
    assert sorted(re.findall(r"^\| `(\w+)` \|", text, re.M)) == sorted(names)


def test_the_guide_names_every_range_of_an_option() -> None:
    (text,) = re.findall(r"^Ranges: (.*?)\. ", GUIDE, re.M)
    assert re.findall(r"`(\w+)`", text) == fields(api.Range)
