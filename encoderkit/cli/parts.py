"""`encoderkit parts`: every part and preset, its owner, its options; `parts check` proves one."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from encoderkit.api import KINDS, Options, Range
from encoderkit.cli.arguments import report_broken_plugins
from encoderkit.config.check import show
from encoderkit.config.presets import Presets, defaults_of
from encoderkit.errors import ConfigError, Fault
from encoderkit.plugins import registry
from encoderkit.registry import Entry

_CHECK = "Try encoderkit parts check norm=rmsnorm."


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    made = argparse.ArgumentParser(
        prog="encoderkit parts",
        description="List every part and preset that can be chosen, with owners and options; "
        "or, with check, put a part through the conformance kit.",
        epilog="examples:\n  encoderkit parts\n  encoderkit parts norm\n  encoderkit parts --json\n"
        "  encoderkit parts check norm=rmsnorm norm.eps=1e-5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "kind", nargs="?", choices=(*KINDS, "check"), help="list one kind only; or check"
    )
    made.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="after check: a part and its options"
    )
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def run(arguments: argparse.Namespace) -> int:
    """Print the list."""
    report_broken_plugins()
    if arguments.kind == "check":
        from encoderkit.cli import check

        return check.run(arguments.overrides, arguments.json)
    if arguments.overrides:
        raise ConfigError([Fault(arguments.overrides[0], "belongs to a check.", _CHECK)])
    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    rows = [row for kind in kinds for row in _rows(kind)]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    from encoderkit.cli.output import console, table

    cells = [(r["kind"], r["choice"], r["summary"], r["owner"], _options_text(r)) for r in rows]
    console().print(table(["kind", "choice", "what it is", "owner", "options"], cells))
    return 0


def _rows(kind: str) -> list[dict[str, Any]]:
    presets = Presets(registry())
    rows = []
    for name, source in presets.groups[kind].items():
        if isinstance(source.of, Entry):
            rows.append(_part_row(source.of))
            continue
        if broken := presets.faults(kind, name):
            rows.append(_preset_row(kind, name, source.owner, f"broken: {broken[0]}"))
            continue
        values = presets.read(kind, name)
        base = registry().entries[(kind, values["part"])].part
        usual = defaults_of(base.options)
        changed = [f"{k}={show(v)}" for k, v in values.items() if k != "part" and v != usual.get(k)]
        summary = " ".join(["preset:", base.name, *changed])
        rows.append(_preset_row(kind, name, source.owner, summary))
    return rows


def _preset_row(kind: str, name: str, owner: str, summary: str) -> dict[str, Any]:
    return {"kind": kind, "choice": name, "summary": summary, "owner": owner, "options": []}


def _part_row(entry: Entry) -> dict[str, Any]:
    part = entry.part
    traits = dataclasses.asdict(part.traits)
    return {
        "kind": part.kind,
        "choice": part.name,
        "summary": part.summary,
        "owner": str(entry.owner),
        "traits": traits | {"layouts": sorted(traits["layouts"])},
        "options": _options(part.options),
    }


def _options(options: type[Options]) -> list[dict[str, Any]]:
    usual = defaults_of(options)
    rows = []
    for spec in dataclasses.fields(options):
        allowed: Range = spec.metadata["range"]
        bounds = {k: v for k, v in dataclasses.asdict(allowed).items() if v is not None}
        rows.append(
            {
                "name": spec.name,
                "type": str(spec.type),
                "default": usual[spec.name],
                "range": bounds,
                "doc": spec.metadata["doc"],
            }
        )
    return rows


def _options_text(row: dict[str, Any]) -> str:
    return " ".join(f"{option['name']}={show(option['default'])}" for option in row["options"])
