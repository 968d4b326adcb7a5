"""The `encoderkit` command: one module for each subcommand, imported when it is called."""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

import encoderkit
from encoderkit.cli.commands import COMMANDS
from encoderkit.errors import ConfigError, EncoderkitError, nearest

HELP = """usage: encoderkit COMMAND [ARGUMENTS]

The bench on which Transformer encoders are compared.

commands:
{commands}

examples:
  encoderkit train norm=rmsnorm ffn=swiglu
  encoderkit sweep norm=layernorm,rmsnorm placement=pre,post seeds=3
  encoderkit compare
  encoderkit explain model=base ffn=swiglu

Each command has --help. Completion in bash: eval "$(encoderkit --shell-completion install=bash)"
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0 when good, 1 failed, 2 wrong usage, 130 interrupted."""
    sys.stdout = sys.stdout or io.StringIO()  # closed by whoever started us
    sys.stderr = sys.stderr or io.StringIO()
    given = list(sys.argv[1:] if argv is None else argv)
    words = [word for word in given if word != "--debug"]
    if not words or words[0] in ("-h", "--help", "help"):
        rows = "\n".join(f"  {name:<9} {text}" for name, text in COMMANDS.items())
        print(HELP.format(commands=rows), end="")
        return 0
    if words[0] in ("-V", "--version"):
        print(f"encoderkit {encoderkit.__version__}")
        return 0
    debug = "--debug" in given
    try:
        os.getcwd()
    except OSError:
        print("encoderkit: the current directory is gone. Type cd, then again.", file=sys.stderr)
        return 1
    try:
        return _run(words[0], words[1:])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        with suppress(OSError):  # the reader has gone; it may have no number either
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except EncoderkitError as error:
        if debug:
            traceback.print_exc()
        else:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        else:
            cause = f"{type(error).__name__}: {error}"
            print(f"encoderkit failed: {cause}\nRun it again with --debug.", file=sys.stderr)
        return 1


def _run(command: str, arguments: list[str]) -> int:
    if command in ("-sc", "--shell-completion"):
        from encoderkit.cli import completion

        return completion.run(arguments)
    if command not in COMMANDS:
        hint = nearest(command, COMMANDS)
        print(
            f"encoderkit: there is no command {command!r}. {hint or 'See encoderkit --help.'}\n"
            f"The commands are {', '.join(COMMANDS)}.",
            file=sys.stderr,
        )
        return 2
    module = importlib.import_module(f"encoderkit.cli.{command}")
    parsed = module.parser().parse_intermixed_args(arguments)
    if command not in ("train", "sweep"):
        return int(module.run(parsed))
    from encoderkit.cli.output import unheard

    with unheard():
        return int(module.run(parsed))


def program() -> None:
    """Run the command of this process, and end it; Ctrl-C meanwhile adds nothing."""
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)
