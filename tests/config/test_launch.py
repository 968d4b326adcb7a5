"""Hydra's own application, with the presets of plugins and users in it."""

from __future__ import annotations

import os
import sys

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
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
        shipped / "scratch",
    )
    assert seen == [("layernorm", 0.1, 512)] * 2 + [("rmsnorm", 1e-6, 512)] * 2
    assert sys.argv == held
    assert {path.name for path in shipped.iterdir()} == {"norm", "ffn", "scratch"}


def test_what_is_raised_is_returned_and_stops_nothing(tmp_path):
    seen = []

    def job(config):
        seen.append(config.seed)
        raise ValueError(f"boom\n\ud800 {config.seed}")

    found = multirun(["seed=1,2"], [], job, tmp_path)
    assert seen == [1, 2]
    assert sorted(found) == [f"ValueError: boom \\ud800 {seed}" for seed in (1, 2)]


def test_what_the_launcher_raises_is_returned(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    (found,) = multirun(["norm=nope"], [], lambda config: None, tmp_path)
    assert found.startswith("the launcher failed: MissingConfigException: In 'config': Could not")
    assert os.environ["HYDRA_FULL_ERROR"] == "0"
    assert capfd.readouterr().err == ""


def test_an_interrupt_stops_the_multirun(tmp_path):
    seen = []

    def job(config):
        seen.append(config.seed)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        multirun(["seed=1,2"], [], job, tmp_path)
    assert seen == [1]


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
        (
            "hydra/launcher=nope",
            "hydra/launcher=nope: no such launcher is installed; there are basic",
        ),
        ("hydra/launcher=basic,basic", "no such launcher is installed"),
        ("hydra.launcher.nope=1", "hydra.launcher.nope=1: Could not override"),
    ],
)
def test_of_hydra_only_the_launcher_can_be_chosen(word, words):
    with Composer(registry()) as composer:
        assert check_launcher(composer, []) == "basic"
        assert check_launcher(composer, ["hydra/launcher=basic"]) == "basic"
        with pytest.raises(ConfigError) as caught:
            check_launcher(composer, [word])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("launcher", "extra"), [("joblib", "joblib"), ("submitit_local", "submitit")]
)
def test_a_launcher_that_is_missing_names_its_extra(launcher, extra, monkeypatch):
    monkeypatch.setattr(ConfigLoaderImpl, "get_group_options", lambda *_, **__: ["basic"])
    with Composer(registry()) as composer, pytest.raises(ConfigError) as caught:
        check_launcher(composer, [f"hydra/launcher={launcher}"])
    assert str(caught.value) == (
        f"hydra/launcher={launcher}: no such launcher is installed; there are basic. "
        f'Install it: pip install "encoderkit[{extra}]".'
    )


def test_hydra_forgets_our_directories(shipped, capsys, monkeypatch):
    held = list(Plugins.instance().discover(SearchPathPlugin)), dict(ConfigStore.instance().repo)
    monkeypatch.setenv("COMP_LINE", "encoderkit ffn=wi")
    monkeypatch.setenv("COMP_POINT", "17")
    complete("query=bash", [shipped / "ffn"])
    assert capsys.readouterr().out.split() == ["ffn=wide"]
    multirun(["ffn=wide", "seed=1"], [shipped / "ffn"], lambda config: None, shipped)
    assert held == (Plugins.instance().discover(SearchPathPlugin), ConfigStore.instance().repo)
    assert GlobalHydra.instance().hydra is None
