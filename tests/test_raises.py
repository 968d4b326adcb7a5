"""Every `raise` of an EncoderkitError in the sources is reached by some test.

From collection on, each error notes which lines were running when it was made. When the whole suite
has run and passed, the notes are compared with the `raise` statements of the syntax trees.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from encoderkit import errors

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [
    *(ROOT / "encoderkit").rglob("*.py"),
    *(ROOT / "plugins" / "encoderkit_builtin").rglob("*.py"),
]
OURS = {name for name, item in vars(errors).items() if isinstance(item, type)} - {"Fault"}

Line = tuple[str, int]
reached: set[Line] = set()


def note(self: BaseException, *args: Any) -> None:
    """Stand in for EncoderkitError.__init__."""
    Exception.__init__(self, *args)
    frame = sys._getframe(1)
    while frame is not None:
        reached.add((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back


errors.EncoderkitError.__init__ = note


def raises(path: Path, source: str) -> Iterator[tuple[str, range]]:
    """Yield the name of what is raised, and its lines, for each `raise` that may be of ours.

    A name that begins in lower case is a function that makes the error.
    """
    for node in ast.walk(ast.parse(source, str(path))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = ast.unparse(node.exc.func).rpartition(".")[2]
            if name in OURS or not name[0].isupper():
                yield name, range(node.lineno, (node.end_lineno or node.lineno) + 1)


def missing(path: Path, source: str, lines: set[Line]) -> list[str]:
    """Return the `raise` statements of one file that no error was made at."""
    ran = {line for name, line in lines if name == str(path)}
    listed = sorted(raises(path, source), key=lambda found: found[1].start)
    return [f"{path}:{span.start}: {name}" for name, span in listed if ran.isdisjoint(span)]


def is_whole(session: pytest.Session) -> bool:
    """Tell whether this is a run of the whole suite, and all of it passed."""
    config = session.config
    option = config.option
    narrowed = option.keyword or option.markexpr or option.deselect or getattr(option, "lf", False)
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return whole and not narrowed and not session.testsfailed


@pytest.fixture(scope="session")
def verdict(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give the verdict when everything has run: the last test of the suite then shows an error."""
    yield
    if is_whole(request.session):
        left = [
            line for path in SOURCES for line in missing(path, path.read_text("utf-8"), reached)
        ]
        if left:
            pytest.fail("no test triggers:\n" + "\n".join(sorted(left)), pytrace=False)


@pytest.mark.usefixtures("verdict")
def test_a_raise_counts_once_its_error_was_made_there(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    source = (
        "def f(error, reason):\n"
        "    if reason == 1:\n"
        "        raise error(\n"
        "            'one'\n"
        "        )\n"
        "    raise error('two')\n"
    )
    path.write_text(source)
    space: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), space)
    assert missing(path, source, reached) == [f"{path}:3: error", f"{path}:6: error"]
    with pytest.raises(errors.InputError, match="one"):
        space["f"](errors.InputError, 1)
    assert missing(path, source, reached) == [f"{path}:6: error"]
    with pytest.raises(errors.ConfigError, match="here: two"):
        space["f"](lambda text: errors.ConfigError([errors.Fault("here", text)]), 2)
    assert missing(path, source, reached) == []


def test_the_raises_of_the_sources_are_found() -> None:
    found = [r for path in SOURCES for r in raises(path, path.read_text("utf-8"))]
    assert any(name == "PluginError" for name, _ in found)


def test_nothing_is_raised_from_a_variable() -> None:
    """Of such a `raise` one cannot see whose error it is, nor where it was made."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name):
                assert node.exc.id[0].isupper(), f"{path}:{node.lineno}: raise {node.exc.id}"
