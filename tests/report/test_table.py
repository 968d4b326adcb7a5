from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from encoderkit.errors import ConfigError, StoreError
from encoderkit.report import table
from encoderkit.sweep import record
from encoderkit.sweep.record import Record

ONE_SEED = "one seed gives no interval; seeds=3 does"
TASK = {"metric": "loss", "lower_is_better": True, "trivial_loss": 2.5, "baselines": {}}


def put(root: Path, label: str, seed: int, loss: float | None, **changes: Any) -> Record:
    """Write one record such as a run leaves."""
    number = len(list(root.iterdir()))
    found = Record(
        id=f"{number:012x}",
        label=label,
        overrides=[*label.split(), f"seed={seed}"],
        state="ok",
        seeds={"seed": seed, "seed_init": seed, "seed_data": seed},
        budget={"steps": 10, "batch": 4},
        data_hash="d1",
        task=dict(TASK),
        environment={"torch": "2", "device": "cpu", "threads": 1},
        parameters=100,
        tokens=600,
        seconds={"train": 2.0, "total": 3.0},
        metrics={"loss": loss},
        started=f"2026-01-01T00:00:{number:02}+00:00",
        reproduce="encoderkit train",
    )
    for name, value in changes.items():
        setattr(found, name, value)
    place = root / f"cell-{found.id}"
    place.mkdir()
    record.save(found, place)
    return found


def save_plan(root: Path, records: list[Record], baseline: str) -> None:
    cells = [{"id": each.id} for each in records]
    content = {"schema": 1, "baseline": baseline, "cells": cells}
    (root / "sweep.json").write_bytes(record.dump(content))


def by_label(found: table.Comparison) -> dict[str, table.Row]:
    return {row.label: row for row in found.rows}


def test_a_row_is_a_variant_and_the_baseline_stands_first(tmp_path: Path) -> None:
    made = [
        put(tmp_path, f"norm={norm}", seed, loss + seed)
        for seed in (0, 1, 2)
        for norm, loss in (("a", 1.0), ("b", 1.5), ("c", 0.5))
    ]
    save_plan(tmp_path, made, "norm=b")
    found = table.compare(tmp_path)
    assert [row.label for row in found.rows] == ["norm=b", "norm=a", "norm=c"]
    assert found.baseline == "norm=b" and found.notes == []
    row = by_label(found)["norm=a"]
    assert (row.n, row.states, row.mean, row.sd) == (3, {"ok": 3}, 2.0, 1.0)
    assert (row.parameters, row.tokens_per_second, row.metric) == (100, 300.0, "loss")
    assert row.difference is not None
    assert (row.difference.pairs, row.difference.mean) == (3, -0.5)
    assert found.rows[0].difference is None


def test_another_baseline_may_be_asked_for_by_some_of_its_words(tmp_path: Path) -> None:
    made = [put(tmp_path, f"norm={n} ffn={f}", 0, 1.0) for n in "ab" for f in "xy"]
    save_plan(tmp_path, made, "norm=a ffn=x")
    assert table.compare(tmp_path, baseline="ffn=y norm=b").baseline == "norm=b ffn=y"
    with pytest.raises(ConfigError, match="--baseline=norm=b: names 2 variants"):
        table.compare(tmp_path, baseline="norm=b")
    with pytest.raises(ConfigError, match=r"Did you mean norm=a ffn=x\?"):
        table.compare(tmp_path, baseline="norm=a fn=x")


def test_a_baseline_may_be_asked_for_by_a_name_that_was_merged(tmp_path: Path) -> None:
    made = [put(tmp_path, f"ffn={f}", 0, 1.0) for f in ("relu", "glu")]
    save_plan(tmp_path, made, "ffn=relu")
    plan = tmp_path / "sweep.json"
    content = json.loads(plan.read_bytes()) | {"merged": {"ffn=swiglu": "ffn=glu"}}
    plan.write_text(json.dumps(content))
    assert table.compare(tmp_path, baseline="ffn=swiglu").baseline == "ffn=glu"


@pytest.mark.hazard("mlflow/mlflow#25640", "tradingstrategy-ai/trade-executor#1624")
def test_failures_are_states_and_never_numbers(tmp_path: Path) -> None:
    put(tmp_path, "norm=a", 0, 1.0)
    put(tmp_path, "norm=a", 1, None, state="nonfinite")
    put(tmp_path, "norm=a", 2, None, state="error", environment={})
    put(tmp_path, "norm=a", 3, 0.1, state="interrupted")
    put(tmp_path, "norm=b", 1, 2.0)
    a, b = table.compare(tmp_path).rows
    assert (a.n, a.mean, a.sd) == (1, 1.0, None)
    assert a.states == {"error": 1, "interrupted": 1, "nonfinite": 1, "ok": 1}
    assert (b.difference, b.mark) == (None, "no seed in common with the baseline")


def test_a_row_beside_a_baseline_without_results_says_so(tmp_path: Path) -> None:
    put(tmp_path, "norm=a", 0, None, state="error")
    put(tmp_path, "norm=b", 0, 2.0)
    put(tmp_path, "norm=c", 0, None, state="error")
    found = table.compare(tmp_path)
    assert [row.mark for row in found.rows] == ["", "no result of the baseline", ""]


def test_whoever_gives_the_directory_above_or_below_is_told_which(tmp_path: Path) -> None:
    for n in range(7):
        (tmp_path / f"s{n}").mkdir()
        put(tmp_path / f"s{n}", "norm=a", 0, 1.0)
    (tmp_path / ".hidden").mkdir()
    put(tmp_path / ".hidden", "norm=a", 0, 1.0)
    with pytest.raises(StoreError) as caught:
        table.compare(tmp_path)
    named = ", ".join(str(tmp_path / f"s{n}") for n in range(5))
    assert str(caught.value).endswith(f"Give the directory of one sweep: {named} and 2 more.")
    (run,) = (tmp_path / "s0").iterdir()
    with pytest.raises(StoreError, match="It is one run; give its sweep") as caught:
        table.compare(run)
    assert str(caught.value).endswith(f"encoderkit compare {tmp_path / 's0'}")


@pytest.mark.hazard("Lightning-AI/pytorch-lightning#2636", "mlflow/mlflow#25640")
@pytest.mark.parametrize("bad", [0, 2], ids=["first", "last"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_neither_best_nor_in_the_mean(
    tmp_path: Path, bad: int, value: float
) -> None:
    for seed, loss in enumerate([1.0, 2.0, 3.0]):
        one = {"loss": value, "state": "nonfinite"} if seed == bad else {"loss": loss}
        put(tmp_path, "norm=a", seed, **one)
        put(tmp_path, "norm=b", seed, loss)
    rows = by_label(table.compare(tmp_path))
    a, b = rows["norm=a"], rows["norm=b"]
    assert (a.n, a.states, a.mean) == (2, {"nonfinite": 1, "ok": 2}, 2.5 if bad == 0 else 1.5)
    assert b.difference is not None and (b.difference.pairs, b.difference.mean) == (2, 0.0)


def test_a_stalled_run_counts_as_the_trivial_loss_at_most(tmp_path: Path) -> None:
    put(tmp_path, "norm=a", 0, 7.0, state="stalled")
    put(tmp_path, "norm=a", 1, 2.4, state="stalled")
    (row,) = table.compare(tmp_path).rows
    assert (row.n, row.capped) == (2, 1)
    assert row.mean == pytest.approx(2.45)


def test_a_task_without_a_trivial_loss_and_a_bare_environment_are_compared(tmp_path: Path) -> None:
    put(tmp_path, "a", 0, 2.6, state="stalled", task=TASK | {"trivial_loss": None})
    put(tmp_path, "b", 0, 2.4, environment={"torch": "2"})
    found = by_label(table.compare(tmp_path))
    assert (found["a"].mean, found["a"].capped, found["b"].mean) == (2.6, 0, 2.4)


def test_another_metric_than_the_loss_is_not_capped(tmp_path: Path) -> None:
    task = TASK | {"metric": "accuracy", "lower_is_better": False}
    put(tmp_path, "norm=a", 0, 9.0, state="stalled", task=task, metrics={"accuracy": 0.1})
    (row,) = table.compare(tmp_path).rows
    assert (row.metric, row.mean, row.capped) == ("accuracy", 0.1, 0)


@pytest.mark.hazard("hudson-infinity/nyssa-bench#10")
@pytest.mark.parametrize(
    ("change", "mark"),
    [
        ({"data_hash": "d2"}, "other data than the baseline"),
        ({"budget": {"steps": 20, "batch": 4}}, "other budget than the baseline"),
    ],
)
def test_other_data_or_budgets_are_marked_and_not_subtracted(
    tmp_path: Path, change: dict[str, Any], mark: str
) -> None:
    put(tmp_path, "norm=a", 0, 1.0)
    put(tmp_path, "norm=b", 0, 1.2, **change)
    found = table.compare(tmp_path)
    row = by_label(found)["norm=b"]
    assert (row.mark, row.difference, row.mean) == (mark, None, 1.2)
    assert any("never averaged or subtracted" in note for note in found.notes)


@pytest.mark.hazard("hudson-infinity/nyssa-bench#10")
@pytest.mark.parametrize(
    "change",
    [
        {"data_hash": "d2"},
        {"budget": {"steps": 20, "batch": 4}},
        {"parts": {"norm": {"part": "a", "source": "new"}}},
    ],
)
def test_unlike_runs_of_one_variant_are_not_averaged(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    put(tmp_path, "norm=a", 0, 1.0)
    put(tmp_path, "norm=a", 1, 3.0, **change)
    found = table.compare(tmp_path)
    assert [(row.label, row.mean) for row in found.rows] == [
        ("norm=a [1]", 1.0),
        ("norm=a [2]", 3.0),
    ]
    assert "norm=a: its runs differ in data, budget or code; one row each" in found.notes


def test_other_environments_are_named(tmp_path: Path) -> None:
    put(tmp_path, "norm=a", 0, 1.0)
    put(tmp_path, "norm=b", 0, 1.0, environment={"torch": "2", "device": "cpu", "threads": 2})
    found = table.compare(tmp_path)
    assert found.notes == ["different threads: 1; 2", ONE_SEED]
    assert by_label(found)["norm=b"].difference is not None


def test_what_the_plan_does_not_know_is_named_and_left_out(tmp_path: Path) -> None:
    old = put(tmp_path, "norm=a", 0, 9.0)
    new = put(tmp_path, "norm=a", 0, 1.0)
    save_plan(tmp_path, [new], "norm=a")
    found = table.compare(tmp_path)
    assert [row.mean for row in found.rows] == [1.0]
    assert found.notes == [f"left out, not in the plan: norm=a ({old.id})"]


@pytest.mark.hazard("tradingstrategy-ai/trade-executor#1624", "mlflow/mlflow#1956")
def test_cells_that_have_not_run_and_broken_records_are_named(tmp_path: Path) -> None:
    made = put(tmp_path, "norm=a", 0, 1.0)
    gone = put(tmp_path, "norm=b", 0, 1.0)
    save_plan(tmp_path, [made, gone], "norm=b")
    (tmp_path / f"cell-{gone.id}" / record.FILE).write_text("<html>")
    found = table.compare(tmp_path)
    assert [row.label for row in found.rows] == ["norm=a"]
    assert found.notes[0] == "1 of 2 planned cells have not run"
    assert found.notes[1].startswith("left out: ") and gone.id in found.notes[1]


def test_cells_that_have_not_started_are_counted_and_not_listed(tmp_path: Path) -> None:
    made = [put(tmp_path, "norm=a", seed, 1.0) for seed in (0, 1, 2)]
    save_plan(tmp_path, made, "norm=a")
    for each in made[1:]:
        (tmp_path / f"cell-{each.id}" / record.FILE).unlink()
    (tmp_path / "cell-stranger").mkdir()
    found = table.compare(tmp_path)
    assert found.notes[0] == "2 of 3 planned cells have not run"
    (note,) = found.notes[1:]
    assert note.startswith("left out: ") and "cell-stranger" in note


def test_one_seed_is_noted_once_unless_more_are_planned(tmp_path: Path) -> None:
    made = [put(tmp_path, f"norm={norm}", 0, 1.0) for norm in "abc"]
    assert table.compare(tmp_path).notes == [ONE_SEED]
    content = {"schema": 1, "baseline": "norm=a", "cells": []}
    content["cells"] = [{"id": each.id, "seed": 0} for each in made] + [{"id": "x", "seed": 1}]
    (tmp_path / "sweep.json").write_bytes(record.dump(content))
    assert table.compare(tmp_path).notes == ["1 of 4 planned cells have not run"]


def test_one_variant_has_no_interval_to_miss(tmp_path: Path) -> None:
    put(tmp_path, "norm=a", 0, 1.0)
    assert table.compare(tmp_path).notes == []


def test_the_plans_axes_are_not_fixed(tmp_path: Path) -> None:
    made = [put(tmp_path, "norm=a ffn=x", seed, 1.0) for seed in (0, 1)]
    assert table.compare(tmp_path).about.fixed == ["norm=a", "ffn=x"]
    save_plan(tmp_path, made, "norm=a ffn=x")
    plan = tmp_path / "sweep.json"
    plan.write_text(json.dumps(json.loads(plan.read_bytes()) | {"axes": ["norm"]}))
    found = table.compare(tmp_path)
    assert found.about.fixed == ["ffn=x"]
    assert json.loads(table.to_json(found))["about"]["seeds"] == [0, 1]


def test_nothing_to_compare_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no records to compare"):
        table.compare(tmp_path)


def test_the_newest_sweep_is_taken_when_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "runs" / "one"
    root.mkdir(parents=True)
    save_plan(root, [put(root, "norm=a", 0, 1.0)], "norm=a")
    assert table.compare().directory == Path("runs/one")


@pytest.mark.hazard("elementary-data/elementary#1964")
def test_json_is_strict_and_holds_every_number(tmp_path: Path) -> None:
    for seed in (0, 1):
        put(tmp_path, "norm=a", seed, 1.0)
        put(tmp_path, "norm=b", seed, 1.5 + seed)
    text = table.to_json(table.compare(tmp_path))
    found = json.loads(text, parse_constant=pytest.fail)
    assert found["schema"] == 1 and found["directory"] == str(tmp_path)
    assert [row["label"] for row in found["rows"]] == ["norm=a", "norm=b"]
    assert found["rows"][1]["difference"]["mean"] == 1.0
    assert found["rows"][1]["difference"]["pairs"] == 2


@pytest.mark.hazard("own: floats survive")
@pytest.mark.parametrize("value", [0.1 + 0.2, 5e-324, -5e-324, sys.float_info.max])
def test_json_and_csv_lose_no_digit(tmp_path: Path, value: float) -> None:
    put(tmp_path, "norm=a", 0, value)
    found = table.compare(tmp_path)
    (row,) = json.loads(table.to_json(found))["rows"]
    (line,) = csv.DictReader(io.StringIO(table.to_csv(found)))
    assert repr(row["mean"]) == line["mean"] == repr(value)


HOSTILE = ["=1+1", "+cmd", "-2", "@SUM(A1)", "\tx"]


@pytest.mark.hazard("own: a name is only a name")
@pytest.mark.parametrize("label", HOSTILE)
def test_csv_holds_no_formula(tmp_path: Path, label: str) -> None:
    put(tmp_path, label, 0, -1.5)
    (row,) = csv.DictReader(io.StringIO(table.to_csv(table.compare(tmp_path))))
    assert row["variant"] == f"'{label}"
    assert row["mean"] == "-1.5"  # a number is a number


def test_csv_has_a_line_a_variant(tmp_path: Path) -> None:
    put(tmp_path, "norm=a,b", 0, 1.0)
    put(tmp_path, 'say "hi"\nnow', 0, 1.25)
    put(tmp_path, 'say "hi"\nnow', 1, None, state="error")
    first, second = csv.DictReader(io.StringIO(table.to_csv(table.compare(tmp_path))))
    assert (first["variant"], first["difference"], first["pairs"]) == ("norm=a,b", "", "0")
    assert (second["variant"], second["difference"]) == ('say "hi"\nnow', "0.25")
    assert (second["states"], second["n"], second["low"]) == ("error:1 ok:1", "1", "")


def test_the_report_needs_no_torch() -> None:
    code = "import sys, encoderkit.report.table; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_plan_says_what_a_variant_is_called(tmp_path: Path) -> None:
    made = [put(tmp_path, "ffn=x norm=a", 0, 1.0)]
    save_plan(tmp_path, made, "norm=a ffn=x")
    plan = tmp_path / "sweep.json"
    content = json.loads(plan.read_bytes())
    content["cells"] = [{"id": each.id, "label": "norm=a ffn=x"} for each in made]
    plan.write_text(json.dumps(content))
    assert [row.label for row in table.compare(tmp_path).rows] == ["norm=a ffn=x"]


def test_confounded_variants_are_named_against_the_plans_baseline(tmp_path: Path) -> None:
    made = [put(tmp_path, f"ffn={f}", 0, 1.0) for f in ("relu", "glu")]
    save_plan(tmp_path, made, "ffn=relu")
    plan = tmp_path / "sweep.json"
    stands = [
        {"label": "ffn=relu", "against": {"confounded": []}},
        {"label": "ffn=glu", "against": {"confounded": ["ffn.bias: true -> false", "x: 1 -> 2"]}},
        {"label": "ffn=none", "against": {"confounded": ["y: 1 -> 2"]}},  # has not run
    ]
    plan.write_text(json.dumps(json.loads(plan.read_bytes()) | {"variants": stands}))
    words = "confounded: ffn=glu: ffn.bias: true -> false; x: 1 -> 2"
    notes = table.compare(tmp_path).notes
    assert [note for note in notes if note.startswith("confounded")] == [words]
    # What the plan knows of its own baseline says nothing of another one.
    other = table.compare(tmp_path, baseline="ffn=glu").notes
    assert not any(note.startswith("confounded") for note in other)
