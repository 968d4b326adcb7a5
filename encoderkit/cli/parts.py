"""`encoderkit parts`: what can be chosen; `parts check` proves a part, `parts new` begins one."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from encoderkit.api import KINDS, Options, Range, Traits
from encoderkit.cli.arguments import add_strict, report_plugins
from encoderkit.config.check import show
from encoderkit.config.presets import Presets, defaults_of
from encoderkit.config.schema import SETTINGS
from encoderkit.errors import ConfigError, Fault, nearest
from encoderkit.plugins import registry
from encoderkit.registry import Entry

_NEW = "Try encoderkit parts new norm mynorm."
_CHECK = "Try encoderkit parts check norm=rmsnorm."
_WORDS = (*KINDS, *SETTINGS, "check", "new")


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    made = argparse.ArgumentParser(
        prog="encoderkit parts",
        description="List every part and preset that can be chosen, with owners and options; "
        "of one kind, or of one group of settings, also what each option means; "
        "or, with check, put a part through the conformance kit; with new, write a package with a "
        "part of your own.",
        epilog="examples:\n  encoderkit parts\n  encoderkit parts norm\n  encoderkit parts train\n"
        "  encoderkit parts --json\n"
        "  encoderkit parts check norm=rmsnorm norm.eps=1e-5\n"
        "  encoderkit parts new norm mynorm",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "kind",
        nargs="?",
        type=_known,
        choices=_WORDS,
        help="list one kind or one group of settings, with its options in full; or check; or new",
    )
    made.add_argument(
        "words",
        nargs="*",
        metavar="KEY=VALUE",
        help="after check: a part and its options; after new: a kind and a name",
    )
    made.add_argument(
        "--to", type=Path, metavar="DIR", help="after new: where to write encoderkit-NAME"
    )
    made.add_argument("--json", action="store_true", help="print JSON")
    add_strict(made)
    return made


def _known(word: str) -> str:
    if word not in _WORDS:
        hint = nearest(word, _WORDS)
        problem = f"{word} must be one of {', '.join(_WORDS)}. {hint}"
        raise argparse.ArgumentTypeError(problem.rstrip())
    return word


def run(arguments: argparse.Namespace) -> int:
    """Print the list."""
    report_plugins(arguments)
    if arguments.to and arguments.kind != "new":
        raise ConfigError([Fault(f"--to {arguments.to}", "belongs to `parts new`.", _NEW)])
    if arguments.kind == "check":
        from encoderkit.cli import check

        return check.run(arguments.words, arguments.json)
    if arguments.kind == "new":
        from encoderkit.cli import new

        return new.run(arguments.words, arguments.to or Path())
    if arguments.words:
        raise ConfigError([Fault(arguments.words[0], "belongs to a check.", _CHECK)])
    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    rows = [row for kind in kinds for row in _rows(kind)]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    from encoderkit.cli.output import show_table

    cells = [
        (r["kind"], r["choice"], r["summary"], r["owner"], _options_text(r))
        for r in rows
        if r["choice"]
    ]
    if cells:
        show_table(["kind", "choice", "what it is", "owner", "options"], cells)
    if arguments.kind:
        print("\n".join([""] * bool(cells) + [line for row in rows for line in _option_lines(row)]))
    return 0


def _rows(kind: str) -> list[dict[str, Any]]:
    """Return a row for each choice, and one without a choice for the options of settings."""
    presets = Presets(registry())
    rows = []
    for name, source in presets.groups.get(kind, {}).items():
        if isinstance(source.of, Entry):
            rows.append(_part_row(source.of))
            continue
        if broken := presets.faults(kind, name):
            rows.append(_preset_row(kind, name, source.owner, f"broken: {broken[0]}"))
            continue
        values = presets.read(kind, name)
        base, options = _base(kind, values)
        usual = defaults_of(options)
        changed = [f"{k}={show(v)}" for k, v in values.items() if k != "part" and v != usual.get(k)]
        summary = " ".join(["preset:", *base, *changed])
        rows.append(_preset_row(kind, name, source.owner, summary))
    if kind in SETTINGS:
        about = (SETTINGS[kind].__doc__ or "").partition("\n")[0]
        rows.append(
            _preset_row(kind, "", "encoderkit", about) | {"options": _options(SETTINGS[kind])}
        )
    return rows


def _base(kind: str, values: dict[str, Any]) -> tuple[list[str], type[Options]]:
    """Return the name of the part that a preset's values are for, if it is one, and its options."""
    if kind in SETTINGS:
        return [], SETTINGS[kind]
    part = registry().entries[(kind, values["part"])].part
    return [part.name], part.options


def _preset_row(kind: str, name: str, owner: str, summary: str) -> dict[str, Any]:
    return {"kind": kind, "choice": name, "summary": summary, "owner": owner, "options": []}


def _part_row(entry: Entry) -> dict[str, Any]:
    part = entry.part
    traits = _plain(part.traits)
    return {
        "kind": part.kind,
        "choice": part.name,
        "summary": part.summary,
        "owner": str(entry.owner),
        "traits": traits,
        "options": _options(part.options),
    }


def _plain(traits: Traits) -> dict[str, Any]:
    """Return traits as plain data, sets as lists."""
    return {
        name: sorted(value) if isinstance(value, frozenset | tuple) else value
        for name, value in dataclasses.asdict(traits).items()
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
    return " ".join(map(_setting, row["options"]))


def _option_lines(row: dict[str, Any]) -> list[str]:
    """Return a line for each option of a row, with range and meaning, and one for its traits."""
    whose = f"{row['kind']}={row['choice']}" if row["choice"] else row["kind"]
    lines = [f"{whose}: {_setting(o)}{_range_text(o['range'])} {o['doc']}" for o in row["options"]]
    usual = _plain(Traits())
    traits = " ".join(
        f"{name}={show(value)}"
        for name, value in row.get("traits", {}).items()
        if value != usual[name]
    )
    return [*lines, f"{whose}: traits {traits}"] if traits else lines


def _setting(option: dict[str, Any]) -> str:
    default = option["default"]
    name = str(option["name"])
    return name if default == "???" else f"{name}={show(default, most=sys.maxsize)}"


def _range_text(bounds: dict[str, Any]) -> str:
    """Return a range in words and in brackets, with a blank before it; nothing for no range."""
    said = [
        f"one of {', '.join(value)}" if name == "choices" else f"{name.replace('_', ' ')} {value:g}"
        for name, value in bounds.items()
    ]
    return f" ({', '.join(said)})" if said else ""
