"""Hydra's own application, with the presets of plugins and users in it."""

from __future__ import annotations

import sys

import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from encoderkit.config.compose import Composer
from encoderkit.config.launch import check_launcher, complete, multirun
from encoderkit.config.request import configure
from encoderkit.errors import ConfigError
from encoderkit.plugins import registry
from encoderkit.registry import Owner


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A plugin that ships the preset norm=loose, and a user's directory with ffn=wide."""
    for kind, name, text in (
        ("norm", "loose", "defaults: [layernorm, _self_]\neps: 0.1\n"),
        ("ffn", "wide", "defaults: [mlp, _self_]\nwidth: 512\n"),
    ):
        directory = tmp_path / kind / kind
        directory.mkdir(parents=True)
        (directory / f"{name}.yaml").write_text(text)
    presets = [(Owner("encoderkit-loose", "1.0"), tmp_path / "norm")]
    monkeypatch.setattr(registry(), "presets", presets)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_road_sees_a_plugins_presets(shipped):
    assert configure("norm=loose") == configure({"norm": "loose"})
    assert configure("norm=loose").norm.options.eps == 0.1
    with Composer(registry(), [shipped / "ffn"]) as composer:
        assert composer.columns(["norm=glob(l*)"]) == [("norm=layernorm", "norm=loose")]
        origins = {o.path: o.source for o in composer.origins(["norm=loose"])}
    assert origins["norm.eps"] == "norm/loose.yaml (encoderkit-loose 1.0)"


def test_multirun_sees_them_too(shipped):
    seen = []
    held = list(sys.argv)
    multirun(
        ["norm=loose,rmsnorm", "ffn=wide", "seed=1,2"],
        [shipped / "ffn"],
        lambda config: seen.append(
            (config.norm.entry.part.name, config.norm.options.eps, config.ffn.options.width)
        ),
    )
    assert seen == [("layernorm", 0.1, 512)] * 2 + [("rmsnorm", 1e-6, 512)] * 2
    assert sys.argv == held
    assert {path.name for path in shipped.iterdir()} == {"norm", "ffn"}


def test_completion_sees_them_too(shipped, capsys, monkeypatch):
    line = "encoderkit norm=lo"
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    complete("query=bash")
    assert capsys.readouterr().out.split() == ["norm=loose"]


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("hydra.callbacks.x._target_=os.system", "only the launcher of Hydra can be chosen."),
        ("+hydra.x=1", "only the launcher of Hydra can be chosen."),
        ("hydra.job.chdir=true", "Type hydra/launcher=NAME, or hydra.launcher.OPTION=VALUE."),
        ("hydra.launcher.x._target_=os.system", "a configuration names parts, never code."),
        ("hydra/launcher=nope", "Could not find 'hydra/launcher/nope'"),
        ("hydra.launcher.nope=1", "hydra.launcher.nope=1: Could not override"),
    ],
)
def test_of_hydra_only_the_launcher_can_be_chosen(word, words):
    with Composer(registry()) as composer:
        check_launcher(composer, ["hydra/launcher=basic"])
        with pytest.raises(ConfigError) as caught:
            check_launcher(composer, [word])
    assert words in str(caught.value)


def test_hydra_forgets_our_directories(shipped, capsys, monkeypatch):
    held = list(Plugins.instance().discover(SearchPathPlugin)), dict(ConfigStore.instance().repo)
    monkeypatch.setenv("COMP_LINE", "encoderkit ffn=wi")
    monkeypatch.setenv("COMP_POINT", "17")
    complete("query=bash", [shipped / "ffn"])
    assert capsys.readouterr().out.split() == ["ffn=wide"]
    multirun(["ffn=wide", "seed=1"], [shipped / "ffn"], lambda config: None)
    assert held == (Plugins.instance().discover(SearchPathPlugin), ConfigStore.instance().repo)
    assert GlobalHydra.instance().hydra is None
