"""Plugins are loaded one by one, and a bad one hurts only itself."""

from __future__ import annotations

import subprocess
import sys
import types
from dataclasses import dataclass, make_dataclass
from importlib.metadata import EntryPoint
from typing import Literal

import pytest

import encoderkit
from encoderkit import api, plugins
from encoderkit.cli import main
from encoderkit.config.request import configure
from encoderkit.errors import ConfigError, PluginError


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
def nothing():
    """Return None, as a function without `return` does."""


def unmarked():
    """Return no parts, and lack the mark."""
    return []


def returning(value):
    """Return a module whose parts are what nobody expects."""

    @api.hookimpl
    def encoderkit_parts():
        return value

    return module(encoderkit_parts=encoderkit_parts)


def shipping(directory):
    """Return a module that ships presets."""

    @api.hookimpl
    def encoderkit_presets():
        return directory

    return module(encoderkit_presets=encoderkit_presets)


def optional(hint, default, **more):
    """Return a module with a part that has one odd option."""
    name, field = more.pop("name", "a"), more.pop("field", None)
    field = field or api.option(default, "odd", **more)
    made = make_dataclass("Odd", [(name, hint, field)], bases=(api.Options,), kw_only=True)
    return module([part(options=made)])


@api.hookimpl
def raising():
    """Fail when called."""
    raise RuntimeError("no parts today")


@pytest.mark.hazard("llm#1351", "own: a misspelt hook", "pytest-dev/pluggy#402")
@pytest.mark.parametrize(
    ("made", "words"),
    [
        (module(API_VERSION=0), "it was written for plugin API 0"),
        (module(API_VERSION=None), f"no API_VERSION; add API_VERSION = {api.VERSION}"),
        (module(API_VERSION=99), "it was written for plugin API 99"),
        (module(encoderkit_partz=encoderkit_partz), "encoderkit_partz"),
        (module(encoderkit_parts=wrong_argument), "nonsense"),
        (module(encoderkit_parts=raising), "RuntimeError: no parts today"),
        (module(API_VERSION=True), "it was written for plugin API True"),
        (module(encoderkit_parts=nothing), "must return a list of Part objects, not None"),
        (module(encoderkit_parts=unmarked), "encoderkit_parts is not marked with @hookimpl"),
        (returning(3), "must return a list of Part objects, not 3"),
        (returning("abc"), "must return a list of Part objects, not 'abc'"),
        (returning(part()), "must return a list of Part objects, not Part("),
        (shipping(3), "encoderkit_presets must return one directory, not 3"),
        (shipping("/no/such/place"), "/no/such/place: there is no such directory"),
        (module([part(), part()]), "norm=mine is already the name of this plugin's a:B"),
        (module([part(name=None)]), "norm=None: a name is lower-case"),
        (module([part(name="null")]), "underscores, none of true, false, null, nan, inf"),
        (module([part(target=3)]), "'module:attribute', not 3"),
        (module([part(summary=None)]), "the summary must be a line of text, not None"),
        (module([part(traits=None)]), "the traits must be a Traits, not None"),
        (optional(float, 1.0, field=0.5), "option a is not declared with option(...)"),
        (optional(float, 1.0, name="part"), "no option is called `part`"),
        (optional(Literal["x"], "x"), "its type must be made of bool, int, float, str"),
        (optional(tuple[int, int], (1, 2)), "its type must be made of"),
        (optional(list[list[int]], [[1]]), "its type must be made of"),
        (optional(object, object()), "its type must be made of"),
        (optional("Nope", 1), "name 'Nope' is not defined"),
        (optional(float, "abc"), "its default 'abc' must be a finite number"),
        (optional(float, -1.0, above=0), "its default -1.0 must be above 0"),
        (optional(int, 1, when="norm.eps"), "option a: its when='norm.eps' must be path=value"),
        (optional(int, 1, when="nrom.eps=1"), "its when='nrom.eps=1' must be path=value"),
        (optional(int, 1, when="a.b=1 or c.d=2"), "several joined with ' and '"),
        (optional(int, 1, when=3), "option a: when=3 is no text"),
        (optional(str, "${norm.x}"), "must not be a text that a configuration would replace"),
        (module(["norm"]), "must return Part objects, not 'norm'"),
        (module([part(kind="norms")]), "the kind must be one of norm, placement"),
        (module([part(name="My-Norm")]), "lower-case letters"),
        (module([part(options=dict)]), "derived from api.Options"),
        (module([part(options=Undecorated)]), "Undecorated lacks @dataclass"),
        (module([part(target="a.B")]), "'module:attribute', not 'a.B'"),
        (module([part(target=None)]), "only attention and ffn may be taken away"),
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


HEAD = "from encoderkit.api import Part, hookimpl\nAPI_VERSION = 1\n@hookimpl\n"
OPTIONS = HEAD + "def encoderkit_parts(): return [Part('norm', 'foo', 'a:B', '', dict)]"


class Rude(BaseException):
    """What no `except Exception` stops."""


ERRORS = [ImportError("no such thing"), SyntaxError("bad"), SystemExit(3), Rude(), RecursionError()]


@pytest.mark.hazard("llm#1280")
@pytest.mark.parametrize("error", ERRORS)
def test_a_plugin_that_fails_at_import_is_left_out(error):
    class Point:
        name, dist, module = "mine", None, "mine"

        def load(self):
            raise error

    (problem,) = plugins.load([Point()]).problems
    assert "failed at import" in str(problem)
    assert type(error).__name__ in str(problem)


def test_ctrl_c_is_not_a_plugins_fault():
    class Point:
        name, dist, module = "mine", None, "mine"

        def load(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plugins.load([Point()])


def test_a_module_without_hooks_is_named(monkeypatch):
    made = module()
    del made.encoderkit_parts
    (problem,) = load(monkeypatch, made).problems
    assert "it has none of the hooks: encoderkit_parts, encoderkit_presets" in str(problem)


def test_what_a_plugin_prints_stays_out_of_the_output(capsys):
    class Point:
        name, dist, module = "mine", None, "mine"

        def load(self):
            print("hello")
            return module([part(options=MineOptions)])

    assert not plugins.load([Point()]).problems
    assert capsys.readouterr() == ("", "hello\n")


def test_a_preset_that_shadows_its_own_plugins_part_is_refused(monkeypatch, tmp_path):
    (tmp_path / "norm").mkdir()
    file = tmp_path / "norm" / "mine.yaml"
    file.write_text("defaults: [layernorm]\n")
    made = module([part()], encoderkit_presets=shipping(tmp_path).encoderkit_presets)
    (problem,) = load(monkeypatch, made).problems
    assert f"{file} would shadow norm=mine, this plugin's a:B" in str(problem)
    assert problem.choices == {("norm", "mine")}


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


STAGES = [
    ("import", "raise ImportError('no such thing')", "ImportError: no such thing"),
    ("import", "def f(:", "SyntaxError: "),
    ("import", "import sys\nsys.exit(3)", "SystemExit: 3"),
    ("API version", "API_VERSION = 0", "it was written for plugin API 0"),
    ("API version", "API_VERSION = 99", "it was written for plugin API 99"),
    ("registration", HEAD + "def encoderkit_partz(): pass", "unknown hook 'encoderkit_partz'"),
    ("registration", HEAD + "def encoderkit_parts(nonsense): pass", "nonsense"),
    ("parts", OPTIONS, "norm=foo: its options must be a dataclass derived from api.Options"),
]


@pytest.mark.hazard("llm#1280")
@pytest.mark.parametrize(("stage", "code", "cause"), STAGES)
def test_a_bad_package_hurts_only_itself(install, capsys, stage, code, cause):
    install("pkg-bad", __init__=code)
    install("pkg-good", ("norm", "good"))
    found = plugins.registry()
    (problem,) = found.problems
    line = str(problem)
    assert line.startswith(f"plugin pkg-bad (pkg-bad 1.0) failed at {stage}: ") and cause in line
    assert "\n" not in line
    assert configure("norm=good").norm.entry.owner.distribution == "pkg-good"
    assert main(["show", "norm=good"]) == 0
    assert f"warning: {line}\n" == capsys.readouterr().err
    # A run that selects its part fails, and says why: for sure once its parts are known.
    with pytest.raises(ConfigError) as caught:
        configure("norm=foo")
    assert line in str(caught.value)
    sure = stage == "parts"
    assert str(caught.value).startswith("norm=foo: cannot be chosen: plugin pkg-bad") == sure
    with pytest.raises(ConfigError) as caught:
        configure("norm=bar")
    assert (line in str(caught.value)) == (not sure)


@pytest.mark.hazard("llm#1280")
@pytest.mark.parametrize(
    "words",
    [
        *[["parts"], ["parts", "norm", "--json"], ["show"], ["explain"]],
        *[["train", "train=smoke"], ["sweep", "train=smoke"], ["train", "-m", "norm=none"]],
    ],
    ids=" ".join,
)
def test_strict_plugins_is_fatal(install, capsys, monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    install("pkg-bad", __init__="1 / 0")
    install("pkg-a", ("norm", "foo"))
    install("pkg-b", ("norm", "foo"))
    assert main([*words, "--strict-plugins"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "ConfigError: 2 faults in this request:\n"
        "  plugins: plugin pkg-bad (pkg-bad 1.0) failed at import: ZeroDivisionError: "
        "division by zero\n"
        "  plugins: norm=foo is a name of pkg-a 1.0 and pkg-b 1.0. "
        "Type norm=pkg-a/foo or norm=pkg-b/foo.\n"
    )


def test_strict_plugins_has_nothing_against_good_ones(install, capsys):
    install("pkg-good", ("norm", "good"))
    assert main(["show", "norm=good", "--strict-plugins"]) == 0
    assert plugins.strict() is plugins.registry()


def test_a_target_that_is_not_there_is_refused_when_it_is_built(install):
    install("pkg-bad", ("norm", "foo"), part="")
    words = r"norm=foo \(pkg-bad 1.0\): pkg_bad.part:Plain cannot be loaded: AttributeError: "
    with pytest.raises(PluginError, match=words):
        encoderkit.build("norm=foo")
    encoderkit.build("norm=none")
