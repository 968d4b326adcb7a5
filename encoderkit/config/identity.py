"""What makes two cells the same: the resolved configuration, the parts' code, the data."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from encoderkit.api import KINDS
from encoderkit.config.check import plain
from encoderkit.config.layers import chosen_of
from encoderkit.config.schema import Config
from encoderkit.registry import Entry


def semantic(config: Config) -> dict[str, Any]:
    """Return the part of a configuration that decides a run's numbers."""
    tree = plain(config)
    for runner in ("run", "sweep"):
        del tree[runner]
    del tree["train"]["expected_seconds"]
    return tree


def part_versions(config: Config) -> dict[str, dict[str, str]]:
    """Return, for each choice, the part with its distribution, version and source hash."""
    versions: dict[str, dict[str, str]] = {}
    for kind in KINDS:
        versions[kind] = version(getattr(config, kind).entry)
    return versions | {place: version(held.entry) for place, held in chosen_of(config).items()}


def version(entry: Entry) -> dict[str, str]:
    """Return a part with its distribution, version and source hash."""
    return {
        "part": entry.part.name,
        "distribution": entry.owner.distribution,
        "version": entry.owner.version,
        "source": entry.source_hash(),
    }


def identity(config: Config, data_hash: str) -> str:
    """Return the 12 hex digits under which a cell's results are kept."""
    whole = {"config": semantic(config), "parts": part_versions(config), "data": data_hash}
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
