"""`encoderkit parts new`: write a package with a part that works, to start from."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

import encoderkit
from encoderkit.api import KINDS, VERSION
from encoderkit.config.presets import Presets
from encoderkit.errors import ConfigError, Fault, nearest
from encoderkit.plugins import registry
from encoderkit.registry import NAME_RULE, is_part_name

LONGEST = 40  # letters of a name


def run(words: Sequence[str], to: Path) -> int:
    """Write the package `encoderkit-NAME` into a directory, and say what to do next.

    Errors: ConfigError for an unknown kind, a name that is none or is taken, a directory in use.
    """
    if len(words) != 2:
        hint = "Try encoderkit parts new norm mynorm."
        raise ConfigError([Fault("parts new", "takes a kind and a name.", hint)])
    kind, name = words
    place = to / f"encoderkit-{name}"
    faults = _faults(kind, name)
    if not faults and place.exists():
        hint = "Choose another name, or another directory with --to DIR."
        faults = [Fault(str(place), "is there already.", hint)]
    if faults:
        raise ConfigError(faults)
    try:
        for path, text in _texts(kind, name).items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text, "utf-8")
    except OSError as error:
        shutil.rmtree(place, ignore_errors=True)
        raise ConfigError([Fault(str(place), f"cannot be written: {error.strerror}.")]) from error
    typed = shlex.quote(str(place))
    print(f"wrote {place}\nNext:")
    print(f"  pip install -e {typed}\n  encoderkit parts check {kind}={name}\n  pytest {typed}")
    return 0


def _faults(kind: str, name: str) -> list[Fault]:
    """Return what is wrong with a kind and a name."""
    if kind not in KINDS:
        return [Fault(f"kind={kind}", f"must be one of {', '.join(KINDS)}.", nearest(kind, KINDS))]
    where = f"name={name}"
    if not is_part_name(name) or len(name) > LONGEST:
        problem = f"{NAME_RULE}; {LONGEST} characters at most."
        return [Fault(where, problem, "Try mynorm.")]
    hint = f"Try my_{name}."
    for choice, source in Presets(registry()).groups[kind].items():
        if choice.rpartition("/")[2] == name:
            return [Fault(where, f"{kind}={choice} is there already ({source.owner}).", hint)]
    if importlib.util.find_spec(f"encoderkit_{name}"):
        return [Fault(where, f"a package encoderkit_{name} is there already.", hint)]
    return []


def _texts(kind: str, name: str) -> dict[str, str]:
    """Return the files of the package, by path."""
    stem = name.removesuffix(kind).strip("_") or name
    values = {
        "kind": kind,
        "name": name,
        "class": "".join(map(str.capitalize, stem.split("_"))) + _CLASS.get(kind, kind.title()),
        "api": str(VERSION),
        "version": encoderkit.__version__,
    }
    module = f"encoderkit_{name}"
    written = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{module}/__init__.py": f"{kind}/__init__.py",
        f"{module}/{kind}.py": f"{kind}/part.py",
        "tests/test_conformance.py": "test_conformance.py",
        f"tests/test_{name}.py": f"{kind}/test_part.py",
    }
    home = files("encoderkit.cli") / "templates"
    return {
        path: Template((home / f"{source}.in").read_text("utf-8")).substitute(values)
        for path, source in written.items()
    }


_CLASS = {"ffn": "FFN"}
