"""Values as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEEPEST = 20  # nothing that is ever right is nested half as deep


def show(value: Any, depth: int = 0, most: int = 60) -> str:
    """Return a value as one would type it, cut to `most` characters."""
    if depth > DEEPEST:
        return "..."
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, list | tuple):
        text = f"[{','.join(show(item, depth + 1, most) for item in value)}]"
    elif isinstance(value, Mapping):
        inside = ",".join(f"{key}:{show(item, depth + 1, most)}" for key, item in value.items())
        text = f"{{{inside}}}"
    elif isinstance(value, float):
        text = repr(value).replace("e-0", "e-")
    else:
        text = str(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."
