"""The state of the user's own repository, for the record."""

from __future__ import annotations

import os
import subprocess
from typing import Any


def state() -> dict[str, Any] | None:
    """Return the commit of the current directory and whether it has changes; None without git."""
    commit = _ask("rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _ask("status", "--porcelain")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _ask(*words: str) -> str | None:
    quiet = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}  # a look must not touch the index
    try:
        answer = subprocess.run(
            ["git", *words], capture_output=True, text=True, timeout=10, check=True, env=quiet
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return answer.stdout.strip()
