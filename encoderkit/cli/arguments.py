"""What the commands' parsers share: overrides, configuration directories, the table of choices."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from pathlib import Path
from typing import Any

from encoderkit.cli.commands import COMMANDS
from encoderkit.config.check import SEEDS, SHORT
from encoderkit.config.presets import Presets
from encoderkit.config.schema import SETTINGS
from encoderkit.errors import nearest
from encoderkit.plugins import registry, strict
from encoderkit.registry import GROUPS


class _Parser(argparse.ArgumentParser):
    """A parser whose help ends with the choices that are installed now; it knows overrides."""

    def parse_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; what is no option is refused with what to type in its place."""
        found, rest = self.parse_known_intermixed_args(args, namespace)
        if rest:
            given = list(args or sys.argv[1:])
            hints = dict.fromkeys(self._instead(word, given) for word in rest if word[0] == "-")
            self.error(f"unrecognized arguments: {' '.join(rest)}\n{' '.join(hints)}".rstrip())
        return found

    def _instead(self, word: str, given: list[str]) -> str:
        """Return what to type for a word that is no option here: an override, another command."""
        name, equals, value = word.partition("=")
        key = name.lstrip("-")
        after = [*given[given.index(word) + 1 :], ""][0] if word in given else ""
        value = value if equals else after if re.fullmatch(r"[^-=][^=]*", after) else "VALUE"
        if key.partition(".")[0] in (*GROUPS, *SETTINGS, *SEEDS, *SHORT):
            return f"An override has no dashes: write {key}={value}."
        owners = [each for each in COMMANDS if _has(each, name)]
        if owners:
            return f"{name} belongs to {' and '.join(f'encoderkit {each}' for each in owners)}."
        known = re.findall(r"--[\w-]+", self.format_usage())
        return nearest(name, known) or "Overrides are KEY=VALUE, without dashes."

    def format_help(self) -> str:
        """Return argparse's help, then every group with its choices."""
        presets = Presets(registry())
        rows = [f"  {group}={_names(presets, group)}" for group in GROUPS if presets.groups[group]]
        more = "Options of a part are set as KIND.OPTION=VALUE (norm.eps=1e-5): `encoderkit parts`."
        return super().format_help() + "\nchoices:\n" + "\n".join(rows) + f"\n\n{more}\n"


def _has(command: str, option: str) -> bool:
    """Tell whether a command has an option."""
    made = importlib.import_module(f"encoderkit.cli.{command}").parser()
    return option in re.findall(r"(?<![\w-])--?[\w-]+", made.format_usage())


def _names(presets: Presets, group: str) -> str:
    names = []
    for name, source in presets.groups[group].items():
        stranger = not source.owner.startswith("encoderkit ")
        names.append(f"{name} [{source.owner}]" if stranger else name)
    return " | ".join(names)


def parser(command: str, about: str, examples: str) -> argparse.ArgumentParser:
    """Return a parser that takes overrides, and says what can be chosen in its help."""
    made = _Parser(
        prog=f"encoderkit {command}",
        description=about,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides")
    made.add_argument(
        "--config-dir",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="a directory with presets of your own, such as DIR/ffn/mine.yaml",
    )
    add_strict(made)
    made.add_argument("--debug", action="store_true", help="show tracebacks")
    return made


def add_strict(made: argparse.ArgumentParser) -> None:
    """Add the option that makes a plugin's fault fatal."""
    made.add_argument(
        "--strict-plugins",
        action="store_true",
        help="stop when a plugin is broken, or has a name that another has too",
    )


def report_plugins(arguments: argparse.Namespace) -> None:
    """Print one line on stderr for each plugin that was left out, and each name of several.

    Errors: ConfigError with these lines, when --strict-plugins was given.
    """
    found = strict() if arguments.strict_plugins else registry()
    for line in (*found.problems, *found.clashes.values()):
        print(f"warning: {line}", file=sys.stderr)
