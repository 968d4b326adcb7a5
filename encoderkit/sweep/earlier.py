"""What a directory holds of earlier starts that a plan cannot take up, and why."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from encoderkit.errors import StoreError
from encoderkit.sweep import axes, store
from encoderkit.sweep.cell import Cell


def changed(directory: Path, cells: Iterable[Cell]) -> list[str]:
    """Return a note for each part whose source has changed since a planned cell ran.

    Such a cell has another identity now, and runs anew.
    """
    try:
        records = store.records(directory).records if directory.is_dir() else []
    except StoreError:
        return []
    ran = {each.id for each in records}
    missing = {_request(cell.overrides): cell for cell in cells if cell.id not in ran}
    found: dict[str, None] = {}
    for each in records:
        cell = missing.get(_request(each.overrides))
        for place, now in cell.parts.items() if cell else ():
            then = each.parts.get(place, {})
            alike = all(then.get(name) == now[name] for name in ("part", "distribution"))
            if alike and then.get("source") != now["source"]:
                owner = f"{now['distribution']} {then.get('version')}"
                owner += f" -> {now['version']}" if then.get("version") != now["version"] else ""
                text = f"the source of {now['part']} ({owner}) has changed since it ran here: "
                found[f"{text}its runs of before stay, and are run anew"] = None
    return list(found)


def _request(overrides: Iterable[str]) -> frozenset[str]:
    return frozenset(axes.without_runner(list(overrides)))
