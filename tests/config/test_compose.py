"""Hydra's grammar and composition behind one door."""

from __future__ import annotations

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import hydra
import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.version import VersionBase
from hypothesis import given
from hypothesis import strategies as st

import encoderkit
from encoderkit.config.compose import Composer
from encoderkit.errors import ConfigError
from encoderkit.plugins import registry
from encoderkit.registry import conf_dir


def points_of(composer, overrides):
    return list(itertools.product(*composer.columns(composer.spelled(overrides))))


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


@pytest.mark.hazard("omry/omegaconf#565")
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
        ("norm=layernorm,rmsnorm", "`encoderkit train -m`."),
        ("train.lr=1,2", "A list is train.lr=[1,2], a text with a comma train.lr='1,2'."),
        ("train.lr=shuffle(1,2)", "`encoderkit train -m`."),
        ("norm.part=rmsnorm,none", "is read-only. Choose with norm=rmsnorm,none."),
        ("norm=ü", "it has a character that stands in quotes only). For a text, write norm='ü'"),
        (
            "sweep.exclude=[norm=none, a=b]",
            "a list of texts, write sweep.exclude=['norm=none','a=b']",
        ),
        ("norm.eps=[1,2", "is no override (no viable alternative at input '[1,2')."),
        ("/norm=rmsnorm", "Write key=value."),
        (f"seed={'1' * 5000}", "is no override (Exceeds the limit"),
        (f"seed={'1' * 400}", "must be an integer of at most 64 bits. Try seed=0."),
        (f"norm.eps={'[' * 3000}{']' * 3000}", "is nested more than 20 levels deep. Remove it."),
        (f"norm{'.a' * 3000}=1", "is nested more than 20 levels deep. Remove it."),
        ("_x=1", "_x=1: there is no such key."),
        ("NORM=rmsnorm", "Did you mean norm?"),
        ("lr=1e-3", "lr=0.001: there is no such key. Did you mean train.lr=0.001?"),
        ("ffn=wide", "swiglu. A preset of your own needs --config-dir DIR."),
        ("model.n_heads=range(1,3)", "is several values, and one is wanted"),
    ],
)
def test_one_fault(composer, override, words):
    with pytest.raises(ConfigError) as caught:
        composer.configure([override])
    assert words in str(caught.value)
    assert len(caught.value.faults) == 1
    assert str(caught.value).endswith(words) or not words.endswith("`.")


def test_one_key_is_given_once(composer):
    assert composer.configure(["norm.eps=1e-3", "norm.eps=1e-3"]).norm.options.eps == 1e-3
    for first, second in (("norm.eps=1e-3", "norm.eps=1e-4"), ("seeds=2", "sweep.seeds=3")):
        with pytest.raises(ConfigError, match=f"{second}: .* was given before, as {first}. Keep"):
            composer.configure([first, second])
    with pytest.raises(ConfigError, match="norm was given before, as norm=rmsnorm"):
        points_of(composer, ["norm=rmsnorm", "norm=layernorm,batchnorm"])


@pytest.mark.hazard("hydra-ecosystem/hydra#126")
@pytest.mark.parametrize(
    "text", ["a=b", "ü", "3", "~/x (1)", "a'b", "a\\", "a\\'b", "#,[{", "a\nb"]
)
@pytest.mark.parametrize("key", ["dir", "baseline", "name"])
def test_texts_are_taken_as_typed(composer, key, text):
    text = text.replace("/", "") if key == "name" else text
    assert getattr(composer.configure([f"sweep.{key}={text}"]).sweep, key) == text


@pytest.mark.hazard("omry/omegaconf#1131")
@pytest.mark.parametrize(
    "words", [["seed_init=${seed}", "seed=???"], ["norm.eps=${train.lr}", "train.lr=???"]]
)
def test_what_is_missing_is_not_hidden_by_what_refers_to_it(composer, words):
    with pytest.raises(ConfigError) as caught:
        composer.configure(words)
    assert words[1].partition("=")[0] in {fault.where for fault in caught.value.faults}
    assert "is missing and must be given" in str(caught.value)


def test_an_interpolation_that_fails_hides_no_other_fault(composer):
    with pytest.raises(ConfigError) as caught:
        composer.configure(["norm.eps=${oops}", "seed_init=${seed_data}", "seed_data=${seed_init}"])
    assert {f.where for f in caught.value.faults} == {"norm.eps", "seed_init", "seed_data"}
    with pytest.raises(ConfigError) as caught:
        composer.configure(["norm.eps=${oops}", "ffn.width=-1"])
    assert [f.where for f in caught.value.faults] == ["norm.eps", "ffn.width=-1"]


def test_options_of_a_choice_that_does_not_exist_are_not_judged(composer):
    with pytest.raises(ConfigError) as caught:
        composer.configure(["norm=dytt", "norm.alpha=1", "ffn.width=-1"])
    assert [f.where for f in caught.value.faults] == ["norm=dytt", "ffn.width=-1"]


def test_faults_of_different_kinds_come_together(composer):
    with pytest.raises(ConfigError) as caught:
        composer.configure(["norm=rmsnrm", "norm.eps=2", "ffn.width=-1", "+x=1", "nonsense"])
    wheres = [fault.where for fault in caught.value.faults]
    assert wheres == ["norm=rmsnrm", "+x=1", "nonsense", "ffn.width=-1"]


def test_columns(composer):
    columns = composer.columns(["norm=layernorm,rmsnorm", "seed=range(0,3)", "ffn=gelu"])
    assert columns == [
        ("norm=layernorm", "norm=rmsnorm"),
        ("seed=0", "seed=1", "seed=2"),
        ("ffn=gelu",),
    ]


def test_glob_sees_parts_and_presets(composer):
    points = points_of(composer, ["ffn=glob(*glu)"])
    gated = {"glu", "swiglu", "geglu", "reglu", "sigmoid_glu"}
    assert {point[0] for point in points} == {f"ffn={name}" for name in gated}


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
        points_of(composer, [override])
    assert words in str(caught.value)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4, unique=True), st.integers(1, 3))
def test_a_grid_has_the_product_of_its_axes(heads, seeds):
    axes = [f"model.n_heads={','.join(map(str, heads))}", f"seed=range(0,{seeds})"]
    with Composer(registry()) as composer:
        points = points_of(composer, axes)
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


def test_seeds_that_follow_the_seed_say_so(composer):
    def seeds(*overrides):
        found = {o.path: o.source for o in composer.origins(overrides)}
        return [found[name] for name in ("seed", "seed_init", "seed_data")]

    assert seeds() == ["default", "seed", "seed"]
    assert seeds("seed=3", "seed_init=4") == ["command line", "command line", "seed"]


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
        points = points_of(composer, ["experiment=mine", "seed=5"])
        assert [point[0] for point in points] == ["ffn=wide", "ffn=gelu"]
        assert len(points_of(composer, ["experiment=mine", "ffn=relu"])) == 1
        config = composer.configure([p for p in points[0]])
        assert (config.norm.entry.part.name, config.train.steps) == ("rmsnorm", 77)
        assert (config.seed, config.sweep.seeds) == (5, 2)
        origins = {o.path: o.source for o in composer.origins(["experiment=mine"])}
        assert origins["norm.part"] == "experiment=mine"
        assert origins["train.steps"].startswith("experiment/mine.yaml")


def test_a_broken_preset_is_named(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "bad.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /nrom: rmsnorm\n"
    )
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


def test_hydras_global_state_is_as_it_was():
    held = [VersionBase.instance().getbase(), dict(ConfigStore.instance().repo), list(sys.argv)]
    VersionBase.instance().version_base = unset = object()
    encoderkit.configure("norm=rmsnorm")
    assert VersionBase.instance().getbase() is unset
    VersionBase.instance().version_base = held[0]
    assert GlobalHydra.instance().hydra is None
    assert held[1:] == [ConfigStore.instance().repo, sys.argv]


def test_threads_take_turns():
    def eps(value):
        return encoderkit.configure("norm=rmsnorm", f"norm.eps={value}").norm.options.eps

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(eps, range(1, 13))) == list(range(1, 13))
    assert GlobalHydra.instance().hydra is None


EXPERIMENT = "# @package _global_\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "hydra: {callbacks: {x: {_target_: os.system}}}",
            "sets hydra.callbacks, and an experiment",
        ),
        ("hydra: {job_logging: {handlers: {h: {(): os.system}}}}", "sets hydra.job_logging"),
        ("hydra: {launcher: {_target_: os.system}}", "sets hydra.launcher"),
        ("hydra: {sweep: {dir: elsewhere}}", "sets hydra.sweep"),
        ("hydra: {job: {chdir: true}}", "sets hydra.job"),
        ("hydra: {sweeper: {params: {experiment: 'card,position'}}}", "sets hydra.sweeper"),
        ("hydra: {sweeper: {params: 3}}", "Cannot assign int"),
        ("defaults: [e]", "something in it is based on itself, or nested too deep."),
        (
            "a: {_target_: os.system}",
            "a._target_=os.system: a configuration names parts, never code",
        ),
    ],
)
def test_an_experiment_sets_parts_and_axes_alone(tmp_path, text, words):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "e.yaml").write_text(f"{EXPERIMENT}{text}\n")
    with Composer(registry(), [tmp_path]) as composer:
        for ask in (composer.configure, composer.columns):
            with pytest.raises(ConfigError) as caught:
                ask(["experiment=e"]) if ask == composer.configure else [
                    composer.configure(point) for point in ask(["experiment=e"])
                ]
            assert words in str(caught.value)


def test_a_preset_that_an_experiment_chooses_is_checked_too(tmp_path):
    for group, name, text in (
        ("ffn", "late", "defaults: [_self_, mlp]\nwidth: 8\n"),
        ("experiment", "e", f"{EXPERIMENT}defaults: [override /ffn: late]\n"),
    ):
        (tmp_path / group).mkdir()
        (tmp_path / group / f"{name}.yaml").write_text(text)
    with (
        Composer(registry(), [tmp_path]) as composer,
        pytest.raises(ConfigError, match="late.yaml"),
    ):
        composer.configure(["experiment=e"])


@pytest.mark.parametrize("name", ["a b", "a,b", "a=b", "a'b", 'a"b', "a$b", "ü", "a%20b", "a\\b"])
def test_directories_of_any_name(tmp_path, name):
    (tmp_path / name / "ffn").mkdir(parents=True)
    (tmp_path / name / "ffn" / "wide.yaml").write_text("defaults: [mlp, _self_]\nwidth: 77\n")
    with Composer(registry(), [tmp_path / name]) as composer:
        assert composer.configure(["ffn=wide"]).ffn.options.width == 77
