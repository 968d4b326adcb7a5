"""`encoderkit parts check`: put a part through the conformance kit, one line a property."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence


def run(overrides: Sequence[str], as_json: bool) -> int:
    """Print what comes out of each property; return 1 when a part lacks one.

    Errors: ConfigError for overrides that name no part.
    """
    from encoderkit.testing import check  # imports torch

    results = check(*overrides)
    if as_json:
        held = list(results)
        print(json.dumps([dataclasses.asdict(result) for result in held], indent=2))
        return 0 if all(result.good for result in held) else 1
    counts: dict[str, int] = {}
    for result in results:
        counts[result.status] = counts.get(result.status, 0) + 1
        print(f"{result.status:<9}  {result.name:<24}  {result.words()}")
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 1 if "broken" in counts else 0
