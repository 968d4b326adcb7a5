"""The comparison of a results directory: one row for each variant, paired with the baseline."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encoderkit.errors import StoreError
from encoderkit.report import stats
from encoderkit.report.about import About, about
from encoderkit.report.stats import Difference
from encoderkit.sweep import axes, record, slots, store
from encoderkit.sweep.record import Record

_ONE_SEED = "one seed gives no interval; seeds=3 does"


@dataclass(frozen=True, slots=True)
class Row:
    """One variant: its runs by state, and the mean of those that have a result.

    `mark` says why the row has no difference although it has results. Tokens a second.
    """

    label: str
    n: int
    states: dict[str, int]
    metric: str
    mean: float | None
    sd: float | None
    difference: Difference | None
    parameters: int | None
    tokens_per_second: float | None
    capped: int  # stalled runs whose loss counts as the trivial loss
    mark: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows, baseline first, and what a reader must know beside them."""

    directory: Path
    baseline: str
    about: About
    rows: list[Row]
    notes: list[str]


@dataclass(slots=True)
class _Group:
    """The records that may be averaged: one variant, one set of data, one budget, one code."""

    label: str
    data: str
    budget: str
    records: list[Record] = field(default_factory=list)

    @property
    def values(self) -> dict[int, float]:
        """The metric by seed."""
        found = {each.seeds["seed"]: _value(each) for each in self.records}
        return {seed: value for seed, value in found.items() if value is not None}

    @property
    def metric(self) -> str:
        """The name of the task's metric."""
        return str(self.records[0].task.get("metric", ""))


def compare(directory: Path | None = None, *, baseline: str | None = None) -> Comparison:
    """Compare the variants of a results directory, or of the newest sweep.

    Errors: StoreError when there is nothing to compare; ConfigError when `baseline` names no
    variant, or several.
    """
    where = store.newest_sweep() if directory is None else directory
    planned = store.sweep(where)
    cells = planned["cells"] if planned else []
    found = store.records(where, {str(cell["id"]) for cell in cells})
    listed, notes = _listed(found.records, planned)
    if not listed:
        raise StoreError(f"{where}: no records to compare. {_elsewhere(where)}")
    notes += [f"left out: {text}" for text in found.malformed]
    groups = _groups(listed)
    labels = list(dict.fromkeys(group.label for group in groups))
    first = _baseline(labels, baseline, planned)
    groups.sort(key=lambda group: group.label != first)  # stable: the plan's order behind it
    notes += _notes(groups)
    notes += dict.fromkeys(f"{each.label}: {t}" for each in listed for t in slots.idle(each.slots))
    titles = _titles(groups)
    rows = [_row(group, groups[0], title) for group, title in zip(groups, titles, strict=True)]
    if planned and first == planned["baseline"]:
        notes += _confounded(planned, labels)
    seeds = {each.seeds["seed"] for each in listed} | {c["seed"] for c in cells if "seed" in c}
    if len(seeds) == 1 and any(row.difference for row in rows):
        notes.append(_ONE_SEED)
    varied = planned.get("axes", []) if planned else []
    return Comparison(where, first, about(listed, varied), rows, notes)


def _elsewhere(where: Path) -> str:
    """Return which directory to give instead: the one above a run, or those of sweeps below."""
    if (where / record.FILE).exists():
        return f"It is one run; give its sweep: encoderkit compare {where.absolute().parent}"
    below = sorted({path.parent.parent for path in where.glob(f"[!.]*/[!.]*/{record.FILE}")})
    if below:
        return f"Give the directory of one sweep: {axes.some(below)}."
    return "Give the directory of a sweep, such as runs/NAME; `encoderkit sweep` prints it."


def to_json(comparison: Comparison) -> str:
    """Return the comparison as strict JSON."""
    content = dataclasses.asdict(comparison) | {"directory": str(comparison.directory)}
    return record.dump({"schema": record.SCHEMA, **content}).decode()


def to_csv(comparison: Comparison) -> str:
    """Return the rows as CSV; a text that a spreadsheet would run gets an apostrophe before it."""
    columns = ["variant", "n", "states", "metric", "mean", "sd", "difference", "low", "high"]
    columns += ["pairs", "parameters", "tokens_per_second", "capped", "mark"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in comparison.rows:
        d = row.difference
        gap = [d.mean, d.low, d.high, d.pairs] if d else [None, None, None, 0]
        states = " ".join(f"{state}:{count}" for state, count in row.states.items())
        cells = [_safe(row.label), row.n, states, _safe(row.metric), row.mean, row.sd, *gap]
        writer.writerow([*cells, row.parameters, row.tokens_per_second, row.capped, row.mark])
    return out.getvalue()


def _safe(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text


def _listed(
    records: Sequence[Record], planned: dict[str, Any] | None
) -> tuple[list[Record], list[str]]:
    """Return the records in the plan's order, and notes on what the plan and the disk do not share.

    A record that the plan does not know may be of older code: it is named, never averaged.
    """
    if planned is None:
        return sorted(records, key=lambda each: each.started), []
    by_id = {each.id: each for each in records}
    wanted = [cell["id"] for cell in planned["cells"]]
    missing = sum(name not in by_id for name in wanted)
    extra = [each for each in records if each.id not in set(wanted)]
    notes = [f"{missing} of {len(wanted)} planned cells have not run"] if missing else []
    notes += [f"left out, not in the plan: {each.label} ({each.id})" for each in extra]
    labels = {cell["id"]: cell.get("label") for cell in planned["cells"]}
    # A run may be of an earlier sweep, which called it otherwise.
    listed = [by_id[name] for name in wanted if name in by_id]
    return [
        dataclasses.replace(each, label=labels[each.id] or each.label) for each in listed
    ], notes


def _groups(records: Sequence[Record]) -> list[_Group]:
    groups: dict[tuple[str, ...], _Group] = {}
    for each in records:
        budget = " ".join(f"{name}={value}" for name, value in each.budget.items())
        code = json.dumps(each.parts, sort_keys=True)
        fresh = _Group(each.label, each.data_hash, budget)
        groups.setdefault((each.label, each.data_hash, budget, code), fresh).records.append(each)
    return list(groups.values())


def _baseline(labels: list[str], asked: str | None, planned: dict[str, Any] | None) -> str:
    if asked is not None:
        merged: dict[str, str] = planned.get("merged", {}) if planned else {}
        names = {label: label for label in labels} | {
            m: o for m, o in merged.items() if o in labels
        }
        return names[axes.match(asked, list(names), "--baseline")]
    known = planned["baseline"] if planned else labels[0]
    return known if known in labels else labels[0]


def _titles(groups: Sequence[_Group]) -> list[str]:
    """Return the variants' names, numbered where one stands in several rows."""
    total = Counter(group.label for group in groups)
    seen: Counter[str] = Counter()
    titles = []
    for group in groups:
        seen[group.label] += 1
        number = f" [{seen[group.label]}]" if total[group.label] > 1 else ""
        titles.append(group.label + number)
    return titles


def _notes(groups: Sequence[_Group]) -> list[str]:
    """Return a note for each thing, beside the variant, in which the records are not alike."""
    notes = []
    for what, kinds in (
        ("data", [group.data for group in groups]),
        ("budgets", [group.budget for group in groups]),
        ("metrics", [group.metric for group in groups]),
    ):
        if len(set(kinds)) > 1:
            found = "; ".join(dict.fromkeys(kinds))
            notes.append(f"different {what}, never averaged or subtracted: {found}")
    twice = [label for label, n in Counter(group.label for group in groups).items() if n > 1]
    notes += [f"{label}: its runs differ in data, budget or code; one row each" for label in twice]
    for name in ("torch", "device", "threads"):
        places = {str(r.environment.get(name)) for g in groups for r in g.records if r.environment}
        if len(places) > 1:
            notes.append(f"different {name}: {'; '.join(sorted(places))}")
    return notes


def _confounded(planned: dict[str, Any], labels: Sequence[str]) -> list[str]:
    """Return a note for each variant that differs in more than what was asked for."""
    found = []
    for each in planned.get("variants", []):
        more = each.get("against", {}).get("confounded", [])
        if more and each.get("label") in labels:
            found.append(f"confounded: {each['label']}: {'; '.join(more)}")
    return found


def _row(group: _Group, base: _Group, label: str) -> Row:
    values = group.values
    pairs = {
        "data": (group.data, base.data),
        "budget": (group.budget, base.budget),
        "metric": (group.metric, base.metric),
    }
    unlike = [what for what, (mine, its) in pairs.items() if mine != its]
    mark = f"other {' and '.join(unlike)} than the baseline" if unlike else ""
    difference = None if group is base or unlike else stats.paired(values, base.values)
    if group is not base and values and not difference and not mark:
        mark = "no seed in common with the baseline" if base.values else "no result of the baseline"
    states = Counter(each.state for each in group.records)
    return Row(
        label=label,
        n=len(values),
        states=dict(sorted(states.items())),
        metric=group.metric,
        mean=stats.mean(list(values.values())),
        sd=stats.sd(list(values.values())),
        difference=difference,
        parameters=group.records[0].parameters,
        tokens_per_second=stats.mean(
            [s for r in group.records if (s := r.tokens_per_second) is not None]
        ),
        capped=sum(_capped(each) for each in group.records),
        mark=mark,
    )


def _value(each: Record) -> float | None:
    """Return the run's metric; a stalled run's loss is at most the trivial loss."""
    found = each.metrics.get(str(each.task.get("metric")))
    if each.state not in record.COUNTED or found is None:
        return None
    return float(each.task["trivial_loss"]) if _capped(each) else found


def _capped(each: Record) -> bool:
    found, trivial = each.metrics.get("loss"), each.task.get("trivial_loss")
    return (
        each.state == "stalled"
        and each.task.get("metric") == "loss"
        and found is not None
        and isinstance(trivial, int | float)
        and found > trivial
    )
