from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from encoderkit.errors import ConfigError
from encoderkit.nn import build
from encoderkit.sweep.plan import notes, plan, single

SMALL = ["train.steps=4", "train.warmup=1", "model.d_model=16"]


def faults(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan([*SMALL, *overrides])
    return [str(fault) for fault in caught.value.faults]


def test_a_fault_of_all_variants_is_said_once_and_as_one_run_says_it() -> None:
    with pytest.raises(ConfigError) as caught:
        single([*SMALL, "norm=rmsnorm", "norm.eps=-1"])
    assert faults("norm=rmsnorm", "ffn=relu,gelu", "norm.eps=-1") == [str(caught.value.faults[0])]


def test_a_fault_that_each_variant_words_in_its_way_is_said_of_each() -> None:
    first, second = faults("norm=layernorm,rmsnorm", "norm.eps=-1")
    assert first.startswith("norm=layernorm: norm.eps=-1: ") and "(layernorm, " in first
    assert second.startswith("norm=rmsnorm: norm.eps=-1: ") and "(rmsnorm, " in second


def test_illegal_cells_are_all_named_before_anything_trains() -> None:
    found = faults("model.n_heads=2,3,5", "norm=rmsnorm,none", "seeds=3")
    assert len(found) == 4
    for text, heads, norm in zip(found, "3355", ["rmsnorm", "none"] * 2, strict=True):
        assert text.startswith(f"model.n_heads={heads} norm={norm}: model.n_heads={heads}: ")


def test_a_fault_of_the_build_is_found_too() -> None:
    (fault,) = faults("position=rope,none", "model.n_heads=16")
    assert fault.startswith("position=rope: ")


def test_whatever_a_part_raises_is_a_fault_of_its_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build.build_model

    def broken(config: Any, *sizes: int, **places: Any) -> Any:
        if config.norm.entry.part.name == "none":
            raise ZeroDivisionError("by a stranger")
        return whole(config, *sizes, **places)

    monkeypatch.setattr(build, "build_model", broken)
    (fault,) = faults("norm=rmsnorm,none")
    assert fault == ("norm=none: this variant: cannot be built: ZeroDivisionError('by a stranger')")


def test_what_other_variants_take_may_be_made_optional() -> None:
    optional = "Type sweep.optional=[norm.eps] to set it only where it has an effect."
    (fault,) = faults("norm=layernorm,dyt", "norm.eps=1e-5")
    assert fault.startswith("norm=dyt: norm.eps=1e-5: there is no such option")
    assert fault.endswith(f"It has alpha. {optional}")
    (fault,) = faults("norm=layernorm,none", "norm.eps=1e-5")
    assert fault.endswith(optional)
    assert plan([*SMALL, "norm=layernorm,dyt", "norm.eps=1e-5", "sweep.optional=[norm.eps]"])
    both = faults("norm=layernorm,dyt", "norm.eps=1e-5", "ffn=relu,none", "ffn.bias=true")
    assert all("Type sweep.optional=[ffn.bias,norm.eps] to" in text for text in both)
    both = faults("norm=layernorm,dyt", "norm.p=3")
    assert len(both) == 2 and not any("optional" in text for text in both)


def test_what_an_experiment_sets_is_not_made_optional(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "a.yaml"
    file.write_text("# @package _global_\nnorm: {eps: 1e-5}\n")
    with pytest.raises(ConfigError, match="no such option") as caught:
        plan([*SMALL, "experiment=a", "norm=layernorm,dyt"], config_dirs=[tmp_path])
    assert "optional" not in str(caught.value)


def test_a_last_line_says_how_to_leave_out_the_variants_that_have_faults() -> None:
    words = [*SMALL, "norm=layernorm,batchnorm", "placement=pre,rezero"]
    with pytest.raises(ConfigError) as caught:
        plan(words)
    lines = str(caught.value).splitlines()
    first = caught.value.faults[0].where.partition(": ")[0]
    assert sum("--skip-illegal" in line for line in lines) == 1
    assert f"\"sweep.exclude=['{first}']\"" in lines[-1]
    assert lines[-1].startswith("2 of 4 variants have faults. `encoderkit sweep --skip-illegal` ")
    assert len(plan([*words, f"sweep.exclude=['{first}']"], skip_illegal=True).labels) == 2
    with pytest.raises(ConfigError) as caught:
        plan([*SMALL, "model.n_heads=3,5"])
    assert "--skip-illegal" not in str(caught.value)


def test_no_seed_is_a_fault() -> None:
    assert faults("seeds=0") == ["sweep.seeds=0: names no seed. Try seeds=3."]
    assert faults("seeds=[]") == ["sweep.seeds=[]: names no seed. Try seeds=3."]


def test_parameters_are_those_of_the_model() -> None:
    small, wide = plan([*SMALL, "model.d_ff=32,64", "ffn=relu"]).cells
    # Per layer, 32 more inner units: a column and a row of 16, and a bias.
    layers = small.tree["model"]["n_layers"]
    assert wide.parameters - small.parameters == layers * 32 * (16 + 16 + 1)


def test_data_that_the_seed_changes_has_one_hash() -> None:
    cells = plan([*SMALL, "seeds=2"]).cells
    assert len({cell.data_hash for cell in cells}) == 1
    assert len({cell.id for cell in cells}) == 2


def test_variants_with_faults_may_be_left_out_in_the_open() -> None:
    found = plan([*SMALL, "model.n_heads=2,3,5", "norm=rmsnorm,none"], skip_illegal=True)
    assert found.labels == ["model.n_heads=2 norm=rmsnorm", "model.n_heads=2 norm=none"]
    assert list(found.illegal) == [
        f"model.n_heads={heads} norm={norm}" for heads in (3, 5) for norm in ("rmsnorm", "none")
    ]
    words = "model.n_heads=3: must divide model.d_model=16. Try model.n_heads=2."
    assert found.illegal["model.n_heads=3 norm=none"] == [words]
    assert f"left out: model.n_heads=3 norm=none: {words}" in notes(found)
    assert found.baseline == "model.n_heads=2 norm=rmsnorm"


def test_all_faults_of_a_variant_are_kept() -> None:
    broken = ["model.n_heads=2,3", "sweep.also=['model.n_heads=3 train.warmup=9']"]
    found = plan(
        ["train.steps=4", "model.d_model=16", "train.warmup=1", *broken], skip_illegal=True
    )
    assert [len(faults) for faults in found.illegal.values()] == [1, 2]


def test_a_plan_of_faults_alone_is_refused_whatever_is_skipped() -> None:
    with pytest.raises(ConfigError, match="must divide model.d_model"):
        plan([*SMALL, "model.n_heads=3,5"], skip_illegal=True)


def test_a_baseline_that_is_left_out_is_none() -> None:
    words = [*SMALL, "model.n_heads=2,3", "sweep.baseline=model.n_heads=3"]
    with pytest.raises(ConfigError, match="sweep.baseline=model.n_heads=3: must be one of"):
        plan(words, skip_illegal=True)


def test_what_a_whole_sweep_has_cannot_be_said_for_some_variants(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    for name, text in (("a", "match: params"), ("b", "match: none")):
        file = tmp_path / "experiment" / f"{name}.yaml"
        file.write_text(f"# @package _global_\nsweep: {{{text}}}\n")
    with pytest.raises(ConfigError) as caught:
        plan([*SMALL, "experiment=a,b"], config_dirs=[tmp_path])
    assert str(caught.value.faults[0]) == (
        "experiment=a: sweep.match=params: is said for some variants, and counts for a whole "
        "sweep. Give it beside the experiments."
    )
    found = plan([*SMALL, "experiment=a,b", "match=params"], config_dirs=[tmp_path])
    assert found.merged == {"experiment=b": "experiment=a"}


def test_an_optional_key_is_left_out_where_it_has_no_effect() -> None:
    words = ["ffn=relu,none", "model.d_ff=8,16", "sweep.optional=[model.d_ff]"]
    found = plan([*SMALL, *words])
    assert found.labels == ["ffn=relu model.d_ff=8", "ffn=relu model.d_ff=16", "ffn=none"]
    assert len(found.cells) == 3 and found.merged == {}
    assert all("model.d_ff" not in text for text in found.cells[2].overrides)
    assert faults(*words[:2])[0].startswith("ffn=none model.d_ff=8: model.d_ff=8: has no effect")
