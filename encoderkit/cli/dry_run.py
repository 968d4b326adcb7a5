"""`encoderkit sweep --dry-run`: what a sweep would run, as a table or JSON; nothing is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from encoderkit.sweep import record
from encoderkit.sweep.earlier import changed
from encoderkit.sweep.forecast import Forecast, amount, disk_bytes, disk_notes, forecasts
from encoderkit.sweep.plan import Outline, Plan, notes

_MEMORY = "memory (at least)"
_MOST = 4  # of what comes with a variant; JSON has all


def show(asked: Plan, as_json: bool, trials: bool) -> int:
    """Print a plan, and return the exit code."""
    found = forecasts(asked.directory, asked.cells, trials)
    total = _total(asked, found)
    if as_json:
        content = asked.content() | {
            "directory": str(asked.directory),
            "forecast": {label: dataclasses.asdict(each) for label, each in found.items()},
            "total": total,
        }
        print(record.dump(content).decode(), end="")
        return 0
    from encoderkit.cli.output import show_table

    outlines = {each.label: each for each in asked.variants}
    rows = [
        (
            cell.id,
            cell.label,
            str(cell.seed),
            *_sizes(outlines[cell.label]),
            *_takes(found[cell.label]),
            amount(found[cell.label].disk_bytes),
        )
        for cell in asked.cells
    ]
    headers = ["id", "variant", "seed", "parameters", "FLOPs a token", "seconds", _MEMORY, "disk"]
    show_table(headers, rows, right="llrrrrrr", droppable=(_MEMORY, "disk", "FLOPs a token"))
    disk = f"{amount(total['disk_bytes'])} of checkpoints"
    print(f"\n{size(asked)} in {asked.directory}, baseline {asked.baseline}: {_sum(total)}; {disk}")
    for each in asked.variants:
        if each.label != asked.baseline:
            print("\n".join(_against(each)))
    for line in beforehand(asked, confounded=False):
        print(f"note: {line}")
    return 0


def beforehand(asked: Plan, confounded: bool = True) -> list[str]:
    """Return what a reader must know before a plan is run where it is to run."""
    here = asked.directory, asked.cells
    return [*notes(asked, confounded), *changed(*here), *disk_notes(*here)]


def size(asked: Plan) -> str:
    """Return how much a plan asks for, in words."""
    runs, variants = len(asked.cells), len(asked.labels)
    return f"{runs} run{'s' * (runs > 1)} of {variants} variant{'s' * (variants > 1)}"


def _sizes(outline: Outline) -> tuple[str, str]:
    flops = "unknown" if outline.flops is None else f"{outline.flops:,.0f}"
    return f"{outline.parameters:,}", flops


def _takes(forecast: Forecast) -> tuple[str, str]:
    seconds = "unknown" if forecast.seconds is None else f"{forecast.seconds:.0f}"
    return seconds, amount(forecast.memory_bytes)


def _total(asked: Plan, found: Mapping[str, Forecast]) -> dict[str, Any]:
    """Return the sums over all cells; None where one is unknown."""
    seconds = [found[cell.label].seconds for cell in asked.cells]
    known = [each for each in seconds if each is not None]
    sources = dict.fromkeys(each.source for each in found.values())
    return {
        "runs": len(asked.cells),
        "parameters": sum(cell.parameters for cell in asked.cells),
        "disk_bytes": disk_bytes(asked.cells),
        "seconds": sum(known) if len(known) == len(seconds) else None,
        "source": ", ".join(sources),
    }


def _sum(total: Mapping[str, Any]) -> str:
    if total["seconds"] is None:
        return "time unknown (--trial runs a few steps of each variant)"
    return f"{total['seconds']:.0f} s of computing, by {total['source']}"


def _against(outline: Outline) -> list[str]:
    """Return how a variant stands to the baseline, in lines."""
    stands = outline.against
    off = [f"{stands.parameters:+.1%} parameters"]
    if stands.flops is not None:
        off.append(f"{stands.flops:+.1%} FLOPs")
    lines = [f"{outline.label}: differs in {', '.join(stands.factors) or 'nothing'}"]
    lines[0] += f"; {', '.join(off)} of the stack"
    if stands.comes_with:
        more = len(stands.comes_with) - _MOST
        tail = f"; and {more} more" * (more > 0)
        lines.append(f"  comes with it: {'; '.join(stands.comes_with[:_MOST])}{tail}")
    if stands.confounded:
        lines.append(f"  confounded by: {'; '.join(stands.confounded)}")
    return lines
