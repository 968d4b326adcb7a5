"""Answer Hydra's shell completion, with the words that are not Hydra's taken out of the line."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path

from encoderkit.cli.commands import COMMANDS, WITH_OVERRIDES
from encoderkit.config.presets import Presets
from encoderkit.errors import ConfigError
from encoderkit.plugins import registry
from encoderkit.registry import GROUPS

_READ_ONLY = re.compile(r"schema=|\w+\.part=")


def run(arguments: list[str]) -> int:
    """Print the candidates for the line in COMP_LINE, or the script that installs completion."""
    from encoderkit.config.launch import complete

    query = arguments[0] if arguments else "install=bash"
    if not re.fullmatch(r"(query|install|uninstall)=(bash|zsh|fish)", query):
        print(f"encoderkit: {query}: must be install=bash, or zsh, or fish.", file=sys.stderr)
        return 2
    if not query.startswith("query="):
        complete(query)
        return 0
    words = _words(os.environ.get("COMP_LINE", ""), os.environ.get("COMP_POINT", ""))
    if len(words) <= 2:
        typed = words[1] if len(words) == 2 else ""
        print(" ".join(name for name in COMMANDS if name.startswith(typed)))
    elif words[1] in WITH_OVERRIDES:
        directories, others = _config_dirs(words[2:])
        if "--diff" in others:  # a second configuration begins there
            others = others[others.index("--diff") + 1 :]
        if others and (names := _choices(others[-1], directories)) is not None:
            print(" ".join(names))
            return 0
        line = " ".join([words[0], *others])
        os.environ |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
        answer = io.StringIO()
        with (  # whatever is wrong with the line is said when it is run; TAB stays silent
            contextlib.suppress(Exception, SystemExit),
            contextlib.redirect_stdout(answer),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            complete(query, directories)
        found = (w for w in answer.getvalue().split() if not _READ_ONLY.fullmatch(w))
        # A group of which some names have a slash is a folder too, for Hydra.
        print(" ".join(f"{w}=" if w in GROUPS else w for w in found))
    return 0


def _choices(word: str, directories: list[Path]) -> list[str] | None:
    """Return the choices that begin with what is typed, if a choice is what is being typed.

    Hydra would take the `pkg-a/` of norm=pkg-a/foo for a group.
    """
    group, equals, typed = word.partition("=")
    if not equals or group not in GROUPS:
        return None
    with contextlib.suppress(ConfigError):
        known = Presets(registry(), directories).groups[group]
        return [f"{group}={name}" for name in known if name.startswith(typed)]
    return []


def _words(line: str, point: str) -> list[str]:
    """Return the words of a line before the cursor; the last one is being typed, and may be ''."""
    typed = line[: int(point)] if point.isdigit() else line
    return typed.split() + ([""] if typed != typed.rstrip() else [])


def _config_dirs(words: list[str]) -> tuple[list[Path], list[str]]:
    """Return the directories that --config-dir names, and the words without them."""
    directories: list[Path] = []
    others: list[str] = []
    left = iter(words)
    for word in left:
        if word.startswith("--config-dir"):
            _, equals, place = word.partition("=")
            directories.append(Path(place if equals else next(left, "")))
        else:
            others.append(word)
    return directories, others
