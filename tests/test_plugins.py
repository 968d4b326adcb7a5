"""Plugins are loaded one by one, and a bad one hurts only itself."""

from __future__ import annotations

import subprocess
import sys
import types
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from encoderkit import api, plugins
from encoderkit.errors import PluginError


@dataclass(slots=True, kw_only=True)
class MineOptions(api.Options):
    """One option."""

    alpha: float = api.option(0.5, "slope", above=0)


class Undecorated(api.Options):
    """Options whose author forgot @dataclass."""


def module(parts=(), **names):
    """Return a plugin module with the given parts and attributes."""
    made = types.ModuleType("encoderkit_test_plugin")
    made.API_VERSION = api.VERSION

    @api.hookimpl
    def encoderkit_parts():
        return list(parts)

    made.encoderkit_parts = encoderkit_parts
    for name, value in names.items():
        setattr(made, name, value)
    return made


def load(monkeypatch, made):
    monkeypatch.setitem(sys.modules, "encoderkit_test_plugin", made)
    return plugins.load([EntryPoint("mine", "encoderkit_test_plugin", plugins.GROUP)])


def part(**changes):
    fields = {"kind": "norm", "name": "mine", "target": "a:B", "summary": ""} | changes
    return api.Part(**fields)


def test_a_good_plugin_is_registered(monkeypatch):
    found = load(monkeypatch, module([part(options=MineOptions)]))
    assert not found.problems
    assert found.entries[("norm", "mine")].part.options is MineOptions
    assert "layernorm" in found.names("norm")


@api.hookimpl
def encoderkit_partz():
    """Return nothing, under a name that is no hook."""


@api.hookimpl
def wrong_argument(nonsense):
    """Take an argument that the hook does not have."""


@api.hookimpl
def raising():
    """Fail when called."""
    raise RuntimeError("no parts today")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (module(API_VERSION=0), "it was written for plugin API 0"),
        (module(API_VERSION=99), "it was written for plugin API 99"),
        (module(encoderkit_partz=encoderkit_partz), "encoderkit_partz"),
        (module(encoderkit_parts=wrong_argument), "nonsense"),
        (module(encoderkit_parts=raising), "RuntimeError: no parts today"),
        (module(["norm"]), "must return Part objects, not 'norm'"),
        (module([part(kind="norms")]), "the kind must be one of norm, placement"),
        (module([part(name="My-Norm")]), "lower-case letters"),
        (module([part(options=dict)]), "derived from api.Options"),
        (module([part(options=Undecorated)]), "Undecorated lacks @dataclass"),
        (module([part(target="a.B")]), "'module:attribute', not 'a.B'"),
        (module([part(target=None)]), "only attention and ffn may be taken away"),
        (module([part(name="layernorm")]), "already the name of a part of encoderkit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_plugin_is_left_out_by_name(monkeypatch, made, words):
    found = load(monkeypatch, made)
    (problem,) = found.problems
    assert words in str(problem)
    assert str(problem).startswith("plugin mine (? ?) failed at ")
    assert ("norm", "mine") not in found.entries
    assert "layernorm" in found.names("norm")


@pytest.mark.parametrize("error", [ImportError("no such thing"), SyntaxError("bad"), SystemExit(3)])
def test_a_plugin_that_fails_at_import_is_left_out(error):
    class Point:
        name, dist = "mine", None

        def load(self):
            raise error

    (problem,) = plugins.load([Point()]).problems
    assert "failed at import" in str(problem)
    assert type(error).__name__ in str(problem)


def test_broken_built_ins_are_fatal(monkeypatch):
    monkeypatch.setattr(plugins, "_builtin", lambda: module(API_VERSION=0))
    with pytest.raises(PluginError, match="plugin builtin"):
        plugins.load([])


def test_a_part_whose_code_is_missing_says_whose_it_is(monkeypatch):
    entry = load(monkeypatch, module([part(target="no_such_module:Norm")])).entries[
        ("norm", "mine")
    ]
    with pytest.raises(PluginError, match=r"norm=mine \(\? \?\): no_such_module:Norm cannot be"):
        entry.load()


def test_loading_every_part_stays_free_of_torch():
    code = "import encoderkit.plugins as p, sys; p.registry(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
