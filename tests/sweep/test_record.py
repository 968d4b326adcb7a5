from __future__ import annotations

import dataclasses
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from encoderkit.errors import StoreError
from encoderkit.sweep import record
from encoderkit.sweep.record import Record

ID = "0123456789ab"


def sample(**changes: Any) -> Record:
    base: dict[str, Any] = {
        "id": ID,
        "label": "norm=rmsnorm",
        "overrides": ["norm=rmsnorm", "seed=0"],
        "seeds": {"seed": 0, "seed_init": 0, "seed_data": 0},
        "started": record.now(),
        "reproduce": "encoderkit train norm=rmsnorm seed=0",
    }
    return Record(**(base | changes))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    found = tmp_path / f"norm-rmsnorm-seed0-{ID}"
    found.mkdir()
    return found


@pytest.mark.hazard("own: floats survive", "own: a name is only a name")
def test_a_record_survives_the_disk(place: Path) -> None:
    whole = sample(
        state="ok",
        label='say "hi"\n=1+1 \U0001f600 \u202e',
        metrics={"loss": 0.1 + 0.2, "tiny": 5e-324, "minus": -0.0, "huge": 1.7976931348623157e308},
        seconds={"train": 1.5},
        peak_memory_bytes=2**40,
    )
    record.save(whole, place)
    found = record.load(place)
    assert found == whole
    assert str(found.metrics["minus"]) == "-0.0"


@pytest.mark.hazard("elementary-data/elementary#1964", "mlflow/mlflow#25640")
def test_what_json_cannot_say_becomes_null(place: Path) -> None:
    metrics = {"loss": math.nan, "up": math.inf, "down": -math.inf}
    record.save(sample(state="nonfinite", metrics=metrics), place)
    assert record.load(place).metrics == {"loss": None, "up": None, "down": None}
    json.loads((place / record.FILE).read_bytes(), parse_constant=pytest.fail)


def test_the_fields_of_schema_1_are_these() -> None:
    names = [each.name for each in dataclasses.fields(Record)]
    assert record.SCHEMA == 1
    assert names == [
        *["schema", "id", "label", "overrides", "state", "reason", "traceback", "seeds", "parts"],
        *["budget", "data_hash", "task", "environment", "parameters"],
        *["flops_per_token", "against", "decay_groups", "slots", "coverage", "tokens"],
        *["steps", "seconds", "peak_memory_bytes", "metrics", "notes", "started", "ended"],
        "reproduce",
    ]


@pytest.mark.hazard("honeycombio/beeline-python#223")
def test_stamps_are_utc() -> None:
    stamp = datetime.fromisoformat(record.now())
    assert stamp.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - stamp) < timedelta(minutes=1)


def test_states_are_results_failures_or_open() -> None:
    assert {
        *["ok", "stalled", "nonfinite", "spiked", "timeout", "killed", "error", "interrupted"],
        "running",
    } == record.STATES
    done = {state for state in record.STATES if sample(state=state).done}
    assert done == {"ok", "stalled", "nonfinite", "spiked"}


BROKEN = {
    "empty": (b"", "Expecting value"),
    "page": (b"<html>no</html>", "Expecting value"),
    "half": (b'{"schema": 1, "id', "Unterminated string"),
    "bytes": (b"\xff\xfe\x00", "not a record"),
    "list": (b"[]", "it holds no mapping"),
    "nan": (b'{"schema": 1, "metrics": {"loss": NaN}}', "NaN is not JSON"),
    "newer": (b'{"schema": 2}', "schema 2, and this encoderkit reads 1"),
    "fields": (b'{"schema": 1, "id": "x"}', "missing"),
    "deep": (b"[" * 100_000, "recursion"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_record_is_refused_by_file_and_cause(place: Path, name: str) -> None:
    content, words = BROKEN[name]
    (place / record.FILE).write_bytes(content)
    with pytest.raises(StoreError, match=words) as caught:
        record.load(place)
    assert str(place / record.FILE) in str(caught.value)


WRONG = {
    "seeds": [None, {}, {"seed": "a"}],
    "metrics": [[], {"loss": "low"}, {"loss": True}],
    "task": [None, 3],
    "environment": [[]],
    "budget": [None, {"steps": [1]}],
    "label": [3, None],
    "tokens": ["x", None, True],
    "seconds": [None, {"train": "x"}],
    "parameters": ["many", 1.5],
    "decay_groups": [{"decay": "x"}],
    "slots": [None, ["x"]],
    "coverage": [None, {"train": 3}],
    "overrides": [None, [1]],
    "data_hash": [None],
    "id": [5],
}


@pytest.mark.parametrize("name,value", [(n, v) for n, values in WRONG.items() for v in values])
def test_a_field_of_another_kind_is_refused_by_name(place: Path, name: str, value: Any) -> None:
    content = dataclasses.asdict(sample()) | {name: value}
    (place / record.FILE).write_bytes(record.dump(content))
    with pytest.raises(StoreError, match=f"{name}(.seed)?: not of the kind that a record holds"):
        record.load(place)


def test_an_unknown_state_is_refused(place: Path) -> None:
    record.save(sample(state="fine"), place)
    with pytest.raises(StoreError, match="state 'fine' is none of error, interrupted, killed"):
        record.load(place)


@pytest.mark.hazard("mlflow/mlflow#1956")
def test_a_copied_record_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "norm-rmsnorm-seed0-ba9876543210"
    copy.mkdir()
    record.save(sample(), copy)
    with pytest.raises(StoreError, match=f"the record of {ID}, in a directory of another name"):
        record.load(copy)


def test_a_missing_record_is_an_error(place: Path) -> None:
    with pytest.raises(StoreError, match="there is none"):
        record.load(place)


def test_a_field_of_later_times_is_passed_over(place: Path) -> None:
    content = dataclasses.asdict(sample()) | {"flops": 3}
    (place / record.FILE).write_bytes(record.dump(content))
    assert record.load(place).id == ID
