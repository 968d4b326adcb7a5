"""The points of a sweep, before any of them is checked or built."""

from __future__ import annotations

from pathlib import Path

import pytest

from encoderkit.config.compose import Composer
from encoderkit.errors import ConfigError
from encoderkit.plugins import registry
from encoderkit.sweep.grid import Grid, grid


def spanned(*words: str, config_dirs: tuple[Path, ...] = ()) -> Grid:
    with Composer(registry(), config_dirs) as composer:
        return grid(composer, words)


def points(*words: str) -> list[str]:
    """Return the points without the settings of the sweep, each as one text."""
    found = spanned(*words).points
    return [" ".join(w for w in point if not w.startswith("sweep.")) for point in found]


def faults(*words: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        spanned(*words)
    return [str(fault) for fault in caught.value.faults]


NORMS, PLACES = "norm=layernorm,rmsnorm", "placement=pre,post"


def test_a_plain_grid_is_the_product_in_the_order_it_was_typed() -> None:
    found = spanned("train=smoke", NORMS, PLACES, "seeds=2")
    assert found.axes == ["norm", "placement"]
    assert found.factors == [("norm",), ("placement",)]
    assert found.excluded == 0 and found.sweep.seeds == 2
    assert found.points[1] == ("train=smoke", "norm=layernorm", "placement=post", "sweep.seeds=2")
    assert len(found.points) == 4


def test_numbers_that_are_written_alike_are_one_value() -> None:
    assert points("norm.eps=1e-5,0.00001,1.0e-05") == ["norm.eps=1e-5"]


def test_axes_that_are_zipped_move_together_and_are_one_factor() -> None:
    words = (NORMS, "ffn=relu,gelu", PLACES, "sweep.zip=[norm+placement]")
    assert points(*words) == [
        "norm=layernorm placement=pre ffn=relu",
        "norm=layernorm placement=pre ffn=gelu",
        "norm=rmsnorm placement=post ffn=relu",
        "norm=rmsnorm placement=post ffn=gelu",
    ]
    assert spanned(*words).factors == [("norm", "placement"), ("ffn",)]


def test_two_groups_of_axes_may_be_zipped() -> None:
    words = (NORMS, PLACES, "ffn=relu,gelu", "train.lr=1e-3,3e-3")
    found = points(*words, "sweep.zip=[norm+placement,'ffn + train.lr']")
    assert len(found) == 4
    assert found[1] == "norm=layernorm placement=pre ffn=gelu train.lr=0.003"


FORM = "joins two axes or more with '+'. Try sweep.zip=[norm+placement]."


@pytest.mark.parametrize(
    ("zipped", "words"),
    [
        ("norm", f"sweep.zip=[norm]: {FORM}"),
        ("norm+norm", f"sweep.zip=[norm+norm]: {FORM}"),
        ("norm+ffn", "sweep.zip=[norm+ffn]: ffn has not several values here."),
        (
            "norm+placment",
            "sweep.zip=[norm+placment]: placment has not several values here. "
            "Did you mean placement?",
        ),
        (
            "norm+train.lr",
            "sweep.zip=[norm+train.lr]: axes that move together have as many values each: "
            "norm has 2, train.lr has 3. Give each as many.",
        ),
        (
            "norm+placement,placement+init",
            "sweep.zip=[placement+init]: placement moves with others already. Join them.",
        ),
    ],
)
def test_what_cannot_be_zipped_is_refused(zipped: str, words: str) -> None:
    axes = (NORMS, PLACES, "init=xavier,torch", "train.lr=1,2,3", "ffn=relu")
    assert faults(*axes, f"sweep.zip=[{zipped}]") == [words]


def test_all_faults_of_zips_come_together() -> None:
    assert len(faults(NORMS, PLACES, "sweep.zip=[norm,norm+ffn]")) == 2


def test_one_at_a_time_varies_each_axis_from_the_first_values() -> None:
    words = ("norm=layernorm,rmsnorm,none", PLACES, "sweep.one_at_a_time=true")
    assert points(*words) == [
        "norm=layernorm placement=pre",
        "norm=rmsnorm placement=pre",
        "norm=none placement=pre",
        "norm=layernorm placement=post",
    ]


def test_one_at_a_time_varies_each_axis_from_the_baseline() -> None:
    words = ("norm=layernorm,rmsnorm,none", PLACES, "sweep.one_at_a_time=true")
    found = points(*words, "sweep.baseline=placement=post norm=rmsnorm")
    assert found == [
        "norm=rmsnorm placement=post",
        "norm=layernorm placement=post",
        "norm=none placement=post",
        "norm=rmsnorm placement=pre",
    ]


def test_one_at_a_time_takes_zipped_axes_as_one() -> None:
    found = points(NORMS, PLACES, "sweep.zip=[norm+placement]", "sweep.one_at_a_time=true")
    assert found == ["norm=layernorm placement=pre", "norm=rmsnorm placement=post"]


def test_further_grids_stand_behind_the_first_with_what_is_fixed() -> None:
    also = "sweep.also=['norm=none ffn=relu,gelu','placement=post train=short']"
    words = ("train=smoke", NORMS, also)
    assert points(*words) == [
        "train=smoke norm=layernorm",
        "train=smoke norm=rmsnorm",
        "train=smoke norm=none ffn=relu",
        "train=smoke norm=none ffn=gelu",
        "placement=post train=short",
    ]
    assert spanned(*words).axes == ["norm", "ffn", "placement", "train"]


def test_a_further_grid_may_quote_and_may_be_of_one_point() -> None:
    found = points("""sweep.also=['model.sublayers="[ffn, attention]"']""")
    assert found == ["", "model.sublayers=[ffn, attention]"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "sweep.also: names no override. Remove it."),
        ('"norm=rmsnorm', 'sweep.also=["norm=rmsnorm]: No closing quotation. Close it.'),
        ("norm=rmsnrm", "norm=rmsnrm: must be one of layernorm"),
        ("nonsense", "nonsense: is no override"),
        ("norm=glob(x*)", "norm=glob(x*): matches nothing"),
        ("norm=none norm=rmsnorm", "norm=rmsnorm: norm was given before, as norm=none."),
        ("train.lr=range(0,200000)", "train.lr=...: spans more than the 100000 points"),
    ],
)
def test_a_further_grid_that_is_malformed_is_refused(text: str, words: str) -> None:
    (fault,) = faults(f"sweep.also=['{text}']")
    assert fault.startswith(words)


def test_an_experiment_beneath_brings_its_axes(tmp_path: Path) -> None:
    experiment(tmp_path, "e", "hydra: {sweeper: {params: {ffn: 'relu,gelu'}}}")
    found = spanned("norm=none", "sweep.also=['experiment=e']", config_dirs=(tmp_path,))
    also = "sweep.also=['experiment=e']"
    assert [set(point) - {"norm=none", also} for point in found.points[1:]] == [
        {"experiment=e", "ffn=relu"},
        {"experiment=e", "ffn=gelu"},
    ]
    assert found.axes == ["ffn", "experiment"]


def test_experiments_with_axes_of_their_own_are_no_axis(tmp_path: Path) -> None:
    experiment(tmp_path, "a", "train: {lr: 1e-3}")
    experiment(tmp_path, "b", "hydra: {sweeper: {params: {ffn: 'relu,gelu', norm: 'none'}}}")
    assert len(spanned("experiment=a,a,a", config_dirs=(tmp_path,)).points) == 1
    with pytest.raises(ConfigError) as caught:
        spanned("experiment=a,b", config_dirs=(tmp_path,))
    assert str(caught.value) == (
        "experiment=b: has axes of its own, ffn, norm, and cannot be one of several. "
        "Choose it alone."
    )
    with pytest.raises(ConfigError, match="experiment=c: must be one of .*a, b"):
        spanned("experiment=a,c", config_dirs=(tmp_path,))


def experiment(directory: Path, name: str, text: str) -> None:
    (directory / "experiment").mkdir(exist_ok=True)
    (directory / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n{text}\n")


def test_an_experiment_may_say_how_its_axes_are_shaped(tmp_path: Path) -> None:
    axes = "hydra: {sweeper: {params: {norm: 'rmsnorm,none', ffn: 'relu,gelu'}}}"
    experiment(tmp_path, "e", f"{axes}\nsweep: {{zip: [norm+ffn]}}")
    found = spanned("experiment=e", config_dirs=(tmp_path,))
    assert [set(point) for point in found.points] == [
        {"experiment=e", "norm=rmsnorm", "ffn=relu"},
        {"experiment=e", "norm=none", "ffn=gelu"},
    ]


def test_optional_keys_are_set_where_the_part_has_them() -> None:
    words = ("norm=layernorm,dyt", "norm.eps=1e-5,1e-4", "sweep.optional=[norm.eps]")
    assert list(dict.fromkeys(points(*words))) == [
        "norm=layernorm norm.eps=1e-5",
        "norm=layernorm norm.eps=0.0001",
        "norm=dyt",
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("norm.eps", "sweep.optional=[norm.eps]: no variant has it. Remove it, and its values."),
        ("norm.esp", "sweep.optional=[norm.esp]: is not among the overrides. "),
    ],
)
def test_an_optional_key_without_effect_is_refused(name: str, words: str) -> None:
    (fault,) = faults("norm=dyt,derf", "norm.eps=1e-5", f"sweep.optional=[{name}]")
    assert fault.startswith(words)
    assert ("Did you mean norm.eps?" in fault) == (name == "norm.esp")


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("norm=rmsnorm", ["layernorm pre", "layernorm post"]),
        ("norm=rmsnorm placement=post", ["layernorm pre", "layernorm post", "rmsnorm pre"]),
        ("norm=rmsnorm placement!=pre", ["layernorm pre", "layernorm post", "rmsnorm pre"]),
        ("norm!=rmsnorm", ["rmsnorm pre", "rmsnorm post"]),
    ],
)
def test_points_that_a_condition_holds_for_are_left_out(condition: str, left: list[str]) -> None:
    words = (NORMS, PLACES, f"sweep.exclude=['{condition}']")
    assert [p.replace("norm=", "", 1).replace("placement=", "") for p in points(*words)] == left
    assert spanned(*words).excluded == 4 - len(left)


def test_a_choice_is_named_by_its_preset_or_its_part() -> None:
    ffns = "ffn=relu,swiglu,geglu"
    assert points(ffns, "sweep.exclude=['ffn=swiglu']") == ["ffn=relu", "ffn=geglu"]
    assert points(ffns, "sweep.exclude=['ffn=glu']") == ["ffn=relu"]
    assert points(ffns, "sweep.exclude=['ffn!=glu']") == ["ffn=swiglu", "ffn=geglu"]
    assert points(ffns, "norm=none", "sweep.exclude=['norm=none ffn=relu']") == [
        "ffn=swiglu norm=none",
        "ffn=geglu norm=none",
    ]


@pytest.mark.parametrize(
    ("axis", "value", "left"),
    [
        ("ffn.bias=true,false", "false", "true"),
        ("ffn.bias=true,false", "True", "false"),
        ("ffn.width=null,64", "null", "64"),
        ("ffn.width=null,64", "64.0", "null"),
        ("train.lr=1e-3,2", "0.001", "2"),
        ("ffn.act=relu,gelu", "relu", "gelu"),
        ("seed=1,2", "1", "2"),
    ],
)
def test_an_option_is_compared_as_its_value(axis: str, value: str, left: str) -> None:
    name = axis.partition("=")[0]
    assert points(axis, f"sweep.exclude=['{name}={value}']") == [f"{name}={left}"]


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (
            "norm",
            "norm is neither key=value nor key!=value. "
            "Try sweep.exclude=['norm=batchnorm placement!=pre'].",
        ),
        ("=rmsnorm", "=rmsnorm is neither key=value nor key!=value."),
        ("norm=none", "leaves no point out. Correct it, or remove it."),
        ("nrom!=rmsnorm", "no point has nrom. Correct it, or remove it."),
        ("norm=rmsnorm ffn.gate=1", "no point has ffn.gate. Correct it, or remove it."),
        ("norm=rmsnorm placement!=prae", "placement=prae: must be one of pre, post,"),
    ],
)
def test_a_condition_without_effect_is_refused(condition: str, words: str) -> None:
    (fault,) = faults(NORMS, PLACES, f"sweep.exclude=['{condition}']")
    assert fault.startswith(f"sweep.exclude=[{condition}]: {words}")


def test_one_point_is_left() -> None:
    assert faults(NORMS, "sweep.exclude=['norm=rmsnorm','norm=layernorm']") == [
        "sweep.exclude: leaves every point out. Leave one."
    ]


def test_a_grid_that_nobody_can_plan_is_refused_at_once() -> None:
    axes = ("seed=range(0,1000)", "train.lr=range(1,1001)")
    assert faults(*axes) == [
        "seed=... train.lr=...: spans more than the 100000 points that can be planned. "
        "Take fewer values."
    ]


def test_settings_of_the_sweep_are_checked_first() -> None:
    (fault,) = faults(NORMS, "sweep.zap=[norm+placement]")
    assert fault.startswith("sweep.zap=[norm+placement]: there is no such option")
    (fault,) = faults(NORMS, "sweep.match=size")
    assert fault.startswith("sweep.match=size: must be one of none, params, flops")
