"""Hydra's grammar and composition behind one door."""

from __future__ import annotations

import subprocess
import sys

import hydra
import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hypothesis import given
from hypothesis import strategies as st

from encoderkit.config.compose import Composer
from encoderkit.config.presets import conf_dir
from encoderkit.errors import ConfigError
from encoderkit.plugins import registry


@pytest.fixture
def composer():
    with Composer(registry()) as made:
        yield made


def test_values_of_presets_parts_and_command_line(composer):
    config = composer.configure(["norm=rmsnorm", "ffn=geglu", "norm.eps=1e-5", "seed=3"])
    assert config.norm.options.eps == 1e-5
    assert (config.ffn.entry.part.name, config.ffn.options.act) == ("glu", "gelu")
    assert (config.seed, config.seed_init, config.seed_data) == (3, 3, 3)


def test_seeds_can_part(composer):
    config = composer.configure(["seed=3", "seed_data=4"])
    assert (config.seed_init, config.seed_data) == (3, 4)


def test_interpolation(composer):
    assert composer.configure(["model.d_ff=${model.d_model}"]).model.d_ff == 64


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("norm=rmsnrm", "norm=rmsnrm: must be one of layernorm"),
        ("norm=null", "norm=null: must be one of"),
        ("norm.eps=abc", "norm.eps=abc: must be a finite number (layernorm, encoderkit"),
        ("norm.eps=nan", "norm.eps=nan: must be a finite number"),
        ("norm.eps=-1", "norm.eps=-1: must be above 0"),
        ("norm.eps=null", "norm.eps=null: must be a finite number"),
        ("norm.eps=yes", "norm.eps=yes: must be a finite number"),
        ("norm.epz=1", "norm.epz=1: there is no such option (layernorm, encoderkit"),
        ("norm.eps.deep=1", "norm.eps={deep:1}: must be a finite number"),
        ("model.d_model=64.0", "model.d_model=64.0: must be an integer"),
        ("model.d_model=0x10", "model.d_model=0x10: must be an integer"),
        ("model.d_model=1e3", "model.d_model=1000.0: must be an integer"),
        ("model.d_model=???", "model.d_model: is missing and must be given"),
        ("+norm.eps=1", "'+' would add a key"),
        ("++norm.epz=1", "Did you mean norm.eps?"),
        ("~norm", "~norm: nothing can be deleted."),
        ("norm@ffn=rmsnorm", "packages and hydra.* belong to"),
        ("hydra.run.dir=x", "packages and hydra.* belong to"),
        ("norm.part=rmsnorm", "is read-only. Choose with norm=rmsnorm."),
        ("norm={_target_: os.system}", "a configuration names parts, never code"),
        ("task.seed=${oops}", "Interpolation key 'oops' not found"),
        ("nonsense", "is no override"),
        ("a.b.c=1", "a={b:{c:1}}: there is no such key."),
        ("norm=layernorm,rmsnorm", "is several values, and one is wanted"),
        ("model.n_heads=range(1,3)", "is several values, and one is wanted"),
    ],
)
def test_one_fault(composer, override, words):
    with pytest.raises(ConfigError) as caught:
        composer.configure([override])
    assert words in str(caught.value)
    assert len(caught.value.faults) == 1


def test_faults_of_different_kinds_come_together(composer):
    with pytest.raises(ConfigError) as caught:
        composer.configure(["norm=rmsnrm", "norm.eps=2", "ffn.width=-1", "+x=1", "nonsense"])
    wheres = [fault.where for fault in caught.value.faults]
    assert wheres == ["norm=rmsnrm", "+x=1", "nonsense", "ffn.width=-1"]


def test_grid(composer):
    points = composer.expand(["norm=layernorm,rmsnorm", "seed=range(0,3)", "ffn=gelu"])
    assert len(points) == 6
    assert points[1] == ("norm=layernorm", "seed=1", "ffn=gelu")
    assert composer.axes(["norm=layernorm,rmsnorm", "ffn=gelu"]) == ["norm"]


def test_glob_sees_parts_and_presets(composer):
    points = composer.expand(["ffn=glob(*glu)"])
    assert {point[0] for point in points} == {"ffn=glu", "ffn=swiglu", "ffn=geglu", "ffn=reglu"}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("norm=glob(x*)", "matches nothing. There are layernorm, rmsnorm"),
        ("norm=layernorm,rmsnrm", "norm=rmsnrm: must be one of"),
        ("train.lr=interval(0,1)", "an interval has no points"),
    ],
)
def test_axes_that_span_nothing(composer, override, words):
    with pytest.raises(ConfigError, match=".*") as caught:
        composer.expand([override])
    assert words in str(caught.value)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True), st.integers(1, 3))
def test_a_grid_has_the_product_of_its_axes(heads, seeds):
    axes = [f"model.n_heads={','.join(map(str, heads))}", f"seed=range(0,{seeds})"]
    with Composer(registry()) as composer:
        points = composer.expand(axes)
    assert len(points) == len(set(points)) == len(heads) * seeds


def test_short_forms(composer):
    assert composer.configure(["seeds=3", "jobs=2"]).sweep.seeds == 3


def test_origins_name_the_place_that_spoke_last(composer):
    found = {o.path: o for o in composer.origins(["ffn=geglu", "ffn.width=8", "train=smoke"])}
    assert found["ffn.width"].source == "command line"
    assert found["ffn.act"].source.startswith("ffn/geglu.yaml")
    assert found["ffn.bias"].source.startswith("ffn/glu (encoderkit")
    assert found["norm.part"].source == "config.yaml"
    assert found["train.steps"].source.startswith("train/smoke.yaml")
    assert found["train.lr"].source == "default"


def test_user_directory(tmp_path):
    (tmp_path / "ffn").mkdir()
    (tmp_path / "ffn" / "wide.yaml").write_text("defaults: [mlp, _self_]\nwidth: 512\n")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /norm: rmsnorm\n"
        "hydra:\n  sweeper:\n    params:\n      ffn: wide,gelu\n      seeds: '2'\n"
        "train:\n  steps: 77\n"
    )
    with Composer(registry(), [tmp_path]) as composer:
        assert composer.configure(["ffn=wide"]).ffn.options.width == 512
        points = composer.expand(["experiment=mine", "seed=5"])
        assert [point[0] for point in points] == ["ffn=wide", "ffn=gelu"]
        assert len(composer.expand(["experiment=mine", "ffn=relu"])) == 1
        config = composer.configure([p for p in points[0]])
        assert (config.norm.entry.part.name, config.train.steps) == ("rmsnorm", 77)
        assert (config.seed, config.sweep.seeds) == (5, 2)
        origins = {o.path: o.source for o in composer.origins(["experiment=mine"])}
        assert origins["norm.part"] == "experiment=mine"
        assert origins["train.steps"].startswith("experiment/mine.yaml")


def test_a_broken_preset_is_named(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "bad.yaml").write_text("defaults:\n  - override /nrom: rmsnorm\n")
    with Composer(registry(), [tmp_path]) as composer, pytest.raises(ConfigError, match="nrom"):
        composer.configure(["experiment=bad"])


def test_a_surrounding_hydra_application_is_left_alone():
    node = {"mine": 1}
    ConfigStore.instance().store(group="norm", name="layernorm", node=node)
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        held = GlobalHydra.instance().hydra
        with Composer(registry()) as composer:
            assert composer.configure([]).norm.options.eps == 1e-6
        assert GlobalHydra.instance().hydra is held
        assert ConfigStore.instance().repo["norm"]["layernorm.yaml"].node == node
    del ConfigStore.instance().repo["norm"]


def test_composing_stays_free_of_torch():
    code = (
        "import encoderkit as e, sys; e.configure('norm=rmsnorm'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
