from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from encoderkit.errors import StoreError
from encoderkit.train.metrics import Metric, MetricsFile, read_metrics

VALUES = [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1 / 3]


def write(path: Path, values: list[float], offset: int = 0) -> int:
    file = MetricsFile(path, offset)
    for step, value in enumerate(values, 1):
        file.log(step, "train/loss", value)
    end = file.sync()
    file.close()
    return end


@pytest.mark.hazard("own: floats survive")
def test_floats_survive_bit_by_bit(tmp_path: Path) -> None:
    end = write(tmp_path / "m", VALUES)
    assert end == (tmp_path / "m").stat().st_size
    found = [metric.value for metric in read_metrics(tmp_path / "m")]
    assert [repr(value) for value in found] == [repr(value) for value in VALUES]


@pytest.mark.hazard("elementary-data/elementary#1964")
def test_what_is_not_finite_is_null_in_strict_json(tmp_path: Path) -> None:
    write(tmp_path / "m", [math.nan, math.inf, -math.inf])
    lines = (tmp_path / "m").read_text().splitlines()
    assert lines[0] == '{"step": 1, "name": "train/loss", "value": null}'
    assert [json.loads(line, parse_constant=pytest.fail)["value"] for line in lines] == [None] * 3


def test_lines_behind_the_offset_are_cut_off(tmp_path: Path) -> None:
    offset = write(tmp_path / "m", [1.0, 2.0])
    write(tmp_path / "m", [3.0], offset)
    assert [m.value for m in read_metrics(tmp_path / "m")] == [1, 2, 3]
    write(tmp_path / "m", [4.0], offset)
    assert [m.value for m in read_metrics(tmp_path / "m")] == [1, 2, 4]
    write(tmp_path / "m", [5.0])
    assert list(read_metrics(tmp_path / "m")) == [Metric(1, "train/loss", 5.0)]


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m"
    write(path, [1.0, 2.0])
    data = path.read_bytes()
    first = data.index(b"\n") + 1
    for end in range(first + 1, len(data) - 1):
        path.write_bytes(data[:end])
        assert [m.value for m in read_metrics(path)] == [1.0], end


def test_flushed_lines_are_seen_while_the_file_is_open(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "m")
    file.log(1, "a", 2.0)
    file.flush()
    assert [m.value for m in read_metrics(tmp_path / "m")] == [2.0]
    file.close()


@pytest.mark.parametrize("line", ["x", "[1]", '{"step": 1}', ""])
def test_any_other_line_that_is_no_metric_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m"
    write(path, [1.0])
    with open(path, "a") as file:
        file.write(f"{line}\n")
    with pytest.raises(StoreError, match=r"m, line 2: not a metric: "):
        list(read_metrics(path))
