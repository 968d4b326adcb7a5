"""Answer Hydra's shell completion, with the subcommand's word taken out of the line."""

from __future__ import annotations

import os

from encoderkit.cli.commands import COMMANDS, WITH_OVERRIDES


def run(arguments: list[str]) -> int:
    """Print the candidates for the line in COMP_LINE, or the script that installs completion."""
    from encoderkit.config.launch import complete

    query = arguments[0] if arguments else "install=bash"
    line = os.environ.get("COMP_LINE", "")
    words = line[: int(os.environ.get("COMP_POINT", len(line)))].split(" ")
    if query.startswith("query="):
        if len(words) <= 2:
            typed = words[1] if len(words) == 2 else ""
            print(" ".join(name for name in COMMANDS if name.startswith(typed)))
            return 0
        if words[1] not in WITH_OVERRIDES:
            return 0
        line = " ".join([words[0], *words[2:]])
        os.environ |= {"COMP_LINE": line, "COMP_POINT": str(len(line))}
    complete(query)
    return 0
