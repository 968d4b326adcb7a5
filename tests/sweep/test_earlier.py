"""A part whose source has changed is another part, and the sweep says so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from encoderkit.sweep import record
from encoderkit.sweep.earlier import changed
from encoderkit.sweep.plan import Plan, plan
from encoderkit.sweep.run import opening

NOTE = (
    "the source of rmsnorm ({}) has changed since it ran here: its runs of before stay, and are "
    "run anew"
)


@pytest.fixture
def asked(tmp_path: Path) -> Plan:
    """A sweep that ran with other sources of two norms."""
    found = plan(["norm=rmsnorm,none", "seeds=2", "train=smoke", f"sweep.dir={tmp_path}"])
    for cell in found:
        then = opening(cell)
        norm = then.parts["norm"] | {"source": "0" * 12}
        if cell.label == "norm=rmsnorm":
            then.id = f"{cell.seed:012x}"
            then.parts = then.parts | {"norm": norm | {"version": "0.0.9"}}
        place = tmp_path / f"{cell.slug}-{then.id}"
        place.mkdir()
        record.save(then, place)
    return found


def test_a_changed_source_is_said_once_for_all_its_runs(asked: Plan) -> None:
    version = asked.cells[0].parts["norm"]["version"]
    assert changed(asked.directory, asked) == [NOTE.format(f"encoderkit 0.0.9 -> {version}")]


def test_what_runs_as_before_is_not_named(asked: Plan, tmp_path: Path) -> None:
    none = [cell for cell in asked if cell.label == "norm=none"]
    assert changed(asked.directory, none) == []
    assert changed(tmp_path / "new", asked) == []
    (tmp_path / "file").touch()
    assert changed(tmp_path / "file", asked) == []


def test_another_request_is_no_change_of_a_source(asked: Plan) -> None:
    longer = plan(["norm=rmsnorm", "train=short", f"sweep.dir={asked.directory}"])
    assert changed(asked.directory, longer) == []


def test_a_changed_source_of_one_version_names_it_once(asked: Plan) -> None:
    cells = [
        dataclasses.replace(
            cell, parts=cell.parts | {"norm": cell.parts["norm"] | {"version": "0.0.9"}}
        )
        for cell in asked
    ]
    assert changed(asked.directory, cells) == [NOTE.format("encoderkit 0.0.9")]
