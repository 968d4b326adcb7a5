"""The choices of every group, and who may add one."""

from __future__ import annotations

import re

import pytest
from omegaconf import OmegaConf

from encoderkit.api import KINDS
from encoderkit.cli import main
from encoderkit.config.compose import Composer
from encoderkit.config.presets import Presets, defaults_of
from encoderkit.config.request import configure
from encoderkit.config.schema import SETTINGS
from encoderkit.errors import ConfigError
from encoderkit.plugins import registry
from encoderkit.registry import Owner, conf_dir

CHOICES = [
    (group, name)
    for group in (*KINDS, "model", "train")
    for name in Presets(registry()).groups[group]
]


@pytest.fixture(scope="module")
def composer():
    with Composer(registry()) as made:
        yield made


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_hydra_and_a_mapping_lead_to_the_same_configuration(composer, group, name):
    assert configure({group: name}) == composer.configure([f"{group}={name}"])


FILES = [f for f in sorted(conf_dir().glob("*/*.yaml")) if f.parent.name not in ("experiment",)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_preset_never_repeats_a_default(file):
    group = file.parent.name
    content = OmegaConf.to_container(OmegaConf.load(file)) or {}
    bases = [base for base in content.pop("defaults", []) if base != "_self_"]
    presets = Presets(registry())
    base = presets.read(group, bases[0]) if bases else defaults_of(SETTINGS[group])
    assert not {key for key, value in content.items() if base[key] == value}


def test_every_group_has_its_default():
    presets = Presets(registry())
    for group in (*KINDS, "model", "train"):
        assert presets.default(group) in presets.groups[group]


@pytest.mark.parametrize("name", ["swiglu", "glu"])
def test_a_users_preset_that_shadows_another_is_refused(tmp_path, name):
    (tmp_path / "ffn").mkdir()
    (tmp_path / "ffn" / f"{name}.yaml").write_text("defaults: [glu]\n")
    with pytest.raises(ConfigError, match=rf"{name}.yaml: the preset ffn={name} would shadow"):
        Presets(registry(), [tmp_path])


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(ConfigError, match="--config-dir .*gone: there is no such directory"):
        Presets(registry(), [tmp_path / "gone"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no part as its base. Begin it with `defaults: [PART, _self_]`."),
        ("width: 4", "names no part as its base."),
        ("3", "cannot be read: "),
        ("- a", "must be a mapping of values."),
        ("a: [", "cannot be read: while parsing"),
        ("width: 1\nwidth: 2", "found duplicate key width"),
        ("x: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("defaults: [nope, _self_]", "its base ffn=nope does not exist. Did you mean none?"),
        ("defaults: [/ffn/mlp@_here_]", "its base ffn=/ffn/mlp@_here_ does not exist."),
        ("defaults: [p]", "is based on itself: p -> p."),
        ("defaults: [q]", "is based on itself: p -> q -> p."),
        ("defaults: mlp", "its defaults must be one base, and then its own values."),
        ("defaults: [_self_, mlp]\nwidth: 8", "its defaults must be one base"),
        ("defaults: [mlp, glu]", "its defaults must be one base"),
        ("defaults: [mlp, {override /norm: rmsnorm}]", "its defaults must be one base"),
        ("defaults: [mlp]\npart: glu", "its part is that of its base, and cannot be set."),
        ("defaults: [mlp]\nwidth: ???", "width: ??? says nothing."),
        ("# @package norm\ndefaults: [mlp]", "Remove the line with @package."),
        (b"\xff\xfe\x97", "cannot be read: "),
        ("x: " + "[" * 3000, "cannot be read: "),
        (None, "cannot be read: "),
    ],
)
def test_a_broken_preset_is_one_fault_in_every_form(tmp_path, monkeypatch, text, words):
    (tmp_path / "ffn").mkdir()
    (tmp_path / "ffn" / "q.yaml").write_text("defaults: [p]\n")
    file = tmp_path / "ffn" / "p.yaml"
    if text is None:
        file.symlink_to("nowhere")
    else:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with Composer(registry(), [tmp_path]) as composer, pytest.raises(ConfigError) as one:
        composer.configure(["ffn=p", "norm.eps=-1"])
    assert [f.where for f in one.value.faults] == ["ffn=p", "norm.eps=-1"]
    assert words in str(one.value)
    with pytest.raises(ConfigError) as two:
        configure({"ffn": "p", "norm": {"eps": -1}}, config_dirs=[tmp_path])
    assert words in str(two.value)
    assert "norm.eps=-1: must be above 0" in str(two.value)
    monkeypatch.setattr(registry(), "presets", [(Owner("someone", "1.0"), tmp_path)])
    assert main(["parts", "ffn"]) == 0  # one that is not asked for hurts nobody


def test_only_who_gives_no_directory_is_told_of_one(tmp_path):
    advice = "A preset of your own needs --config-dir DIR."
    assert Presets(registry()).unknown("ffn", "wide").hint == advice
    assert Presets(registry(), [tmp_path]).unknown("ffn", "wide").hint == ""
    assert Presets(registry()).unknown("ffn", "swigluu").hint == "Did you mean swiglu?"
    assert Presets(registry()).unknown("ffn", {"part": "mlp"}).hint == ""


def test_an_experiment_says_that_it_is_one(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "e.yaml").write_text("train: {steps: 3}\n")
    with (
        Composer(registry(), [tmp_path]) as composer,
        pytest.raises(ConfigError, match="Begin it with the line `# @package _global_`."),
    ):
        composer.configure(["experiment=e"])


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("ffn/we ird.yaml", "a preset is a letter, then letters"),
        ("ffn/null.yaml", "a preset is a letter, then letters"),
        ("ffn/a.yml", "with .yaml. Rename it."),
        ("fnn/a.yaml", "is no group of presets. Did you mean ffn?"),
        ("hydra/launcher/a.yaml", "presets configure parts, never Hydra."),
        ("config.yaml", "is never read."),
    ],
)
def test_what_has_no_place_in_a_directory_of_presets(tmp_path, path, words):
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("")
    with pytest.raises(ConfigError, match=re.escape(words)):
        Presets(registry(), [tmp_path])


def test_other_files_may_stay_where_presets_are(tmp_path):
    (tmp_path / "sources").mkdir()
    for name in ("notes.yaml", "sources/main.yaml", "README.md"):
        (tmp_path / name).write_text("")
    found, usual = (Presets(registry(), places).groups for places in ([tmp_path], []))
    assert {group: list(names) for group, names in found.items()} == {
        group: list(names) for group, names in usual.items()
    }
