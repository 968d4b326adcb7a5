"""The choices of every group, and who may add one."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from encoderkit.api import KINDS
from encoderkit.config.compose import Composer
from encoderkit.config.presets import Presets, conf_dir, defaults_of
from encoderkit.config.request import configure
from encoderkit.config.schema import SETTINGS
from encoderkit.errors import ConfigError
from encoderkit.plugins import registry

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
