"""Hydra's own application, with the presets of plugins and users in it."""

from __future__ import annotations

import sys

import pytest

from encoderkit.config.compose import Composer
from encoderkit.config.launch import complete, multirun
from encoderkit.config.request import configure
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
        assert composer.expand(["norm=glob(l*)"]) == [("norm=layernorm",), ("norm=loose",)]
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
