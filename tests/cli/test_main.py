"""The command itself: help, unknown words, exit codes, no tracebacks."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import encoderkit
from encoderkit import cli
from encoderkit.cli.commands import COMMANDS
from encoderkit.errors import ConfigError, Fault, StoreError


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_the_commands(words, capsys):
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert f"examples:\n  encoderkit {name}" in capsys.readouterr().out


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"encoderkit {encoderkit.__version__}\n"


def test_unknown_command(capsys):
    assert cli.main(["trian"]) == 2
    assert "Did you mean train?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConfigError([Fault("a=1", "bad.")]), 2, "ConfigError: a=1: bad."),
        (StoreError("gone"), 1, "StoreError: gone"),
        (
            RuntimeError("oops"),
            1,
            "encoderkit failed: RuntimeError: oops\nRun it again with --debug.",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_errors_are_one_block(error, code, words, debug, capsys, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["train", "--debug"] if debug else ["train"]) == code
    text = capsys.readouterr().err
    if debug and not isinstance(error, KeyboardInterrupt):
        assert "Traceback" in text
    else:
        assert text == f"{words}\n"


@pytest.mark.parametrize(
    "words", ["--help", "train --help", "parts", "show norm=rmsnorm", "-sc query=bash", "compare x"]
)
def test_nothing_imports_torch_needlessly(words):
    code = (
        "import sys; from encoderkit.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, *words.split()]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_debug_may_stand_anywhere(capsys):
    assert cli.main(["--debug", "show", "norm=x"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_change_nothing(closed):
    for words, code in (("show", 0), ("show norm=x", 2)):
        command = f"{sys.executable} -m encoderkit {words} {closed}"
        assert subprocess.run(command, shell=True, capture_output=True).returncode == code


@pytest.mark.parametrize("flag", ["-O", "-OO"])
def test_optimised_python_says_the_same(flag):
    command = [sys.executable, flag, "-m", "encoderkit", "show", "norm.eps=-1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("ConfigError: norm.eps=-1: must be above 0")


def test_a_reader_that_leaves_is_no_error():
    command = f"{sys.executable} -m encoderkit parts --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[\n", "")


def test_a_program_that_ends_hears_no_more_ctrl_c(monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(cli, "main", lambda: 3)
    try:
        with pytest.raises(SystemExit, match="3"):
            cli.program()
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
