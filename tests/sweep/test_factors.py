"""The one-factor guard: what a variant's choices bring, and what else it differs in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from encoderkit.sweep.factors import Against
from encoderkit.sweep.plan import Plan, notes, plan

SMALL = ["train.steps=4", "train.warmup=1", "model.n_layers=1"]
SIZE = "model.d_model=16"


def stands(*words: str, config_dirs: tuple[Path, ...] = ()) -> dict[str, Against]:
    """Return how each variant stands, but the baseline."""
    found = plan([*SMALL, *words], config_dirs=config_dirs)
    first, *others = found.variants
    assert first.label == found.baseline and first.against == Against()
    return {each.label: each.against for each in others}


def one(*words: str, config_dirs: tuple[Path, ...] = ()) -> Against:
    (found,) = stands(*words, config_dirs=config_dirs).values()
    return found


def settings(found: Against) -> list[str]:
    """Return the options that come with a choice, without parameters."""
    return [text for text in found.comes_with if text.partition(":")[0].count(".") and "->" in text]


def test_what_a_placement_brings_comes_with_it() -> None:
    found = one(SIZE, "placement=pre,post")
    assert found.factors == ("placement",) and found.confounded == ()
    assert found.comes_with == (
        "without attention.placement.before.weight",
        "without attention.placement.before.bias",
        "without ffn.placement.before.weight",
        "without ffn.placement.before.bias",
        "without final.weight",
        "without final.bias",
        "with attention.placement.after.weight (16,)",
        "with attention.placement.after.bias (16,)",
        "with ffn.placement.after.weight (16,)",
        "with ffn.placement.after.bias (16,)",
    )


def test_a_gate_comes_with_a_glu_and_its_missing_biases_do_not() -> None:
    found = one(SIZE, "ffn=gelu,swiglu")
    assert "with ffn.branch.gate.weight (40, 16)" in found.comes_with
    assert "ffn.branch.up.weight: (64, 16) -> (40, 16)" in found.comes_with
    assert "ffn.act: gelu -> silu" in found.comes_with
    assert found.confounded == ("ffn.bias: true -> false",)
    assert one(SIZE, "ffn=gelu,swiglu", "ffn.bias=true").confounded == ()


def test_options_that_one_part_alone_has_come_with_it() -> None:
    found = stands(SIZE, "norm=layernorm,rmsnorm,dyt")
    assert settings(found["norm=rmsnorm"]) == [
        "norm.bias: true -> none",
        "norm.offset: none -> 0.0",
    ]
    assert settings(found["norm=dyt"])[:2] == ["norm.eps: 1e-6 -> none", "norm.bias: true -> none"]
    assert {each.confounded for each in found.values()} == {()}


def test_another_eps_confounds_until_it_is_said() -> None:
    norms = (SIZE, "norm=layernorm,scalenorm")
    assert one(*norms).confounded == ("norm.eps: 1e-6 -> 0.001",)
    assert one(*norms, "norm.eps=1e-5").confounded == ()
    assert stands(*norms, "norm.eps=1e-5,1e-4")["norm=scalenorm norm.eps=0.0001"].factors == (
        "norm",
        "norm.eps",
    )


def test_axes_that_move_together_are_one_factor() -> None:
    found = one(SIZE, "norm=layernorm,scalenorm", "norm.eps=1e-6,1e-3", "sweep.zip=[norm+norm.eps]")
    assert found.factors == ("norm+norm.eps",)
    assert found.confounded == ()


def test_an_optional_key_that_a_part_lacks_comes_with_the_part() -> None:
    found = one(SIZE, "norm=layernorm,dyt", "norm.eps=1e-5", "sweep.optional=[norm.eps]")
    assert found.factors == ("norm",) and found.confounded == ()
    assert "norm.eps: 1e-5 -> none" in found.comes_with


def test_what_was_asked_for_is_no_remark() -> None:
    assert one(SIZE, "train.lr=1e-3,2e-3") == Against(factors=("train.lr",))
    assert one(SIZE, "ffn=relu,gelu") == Against(factors=("ffn",))


def test_what_follows_from_a_value_comes_with_it() -> None:
    found = one("model.d_model=16,32")
    assert found.factors == ("model.d_model",) and found.confounded == ()
    assert found.comes_with[0] == "model.d_ff: 64 -> 128"
    assert one(SIZE, "model.d_ff=${model.d_model}", "model.n_heads=1,2") == Against(
        factors=("model.n_heads",)
    )


def test_a_budget_and_a_size_are_what_their_presets_say() -> None:
    budget = plan(["train=smoke,short", "model.n_layers=1", SIZE]).variants[1].against
    assert budget.confounded == () and "train.steps: 10 -> 400" in budget.comes_with
    size = plan(["model=tiny,small", "train=smoke"]).variants[1].against
    assert size.confounded == () and "model.d_model: 64 -> 256" in size.comes_with


Presets = Callable[..., Path]


@pytest.fixture
def presets(tmp_path: Path) -> Presets:
    def write(**texts: str) -> Path:
        for name, text in texts.items():
            group, _, stem = name.partition("__")
            (tmp_path / group).mkdir(exist_ok=True)
            head = "# @package _global_\n" if group == "experiment" else ""
            (tmp_path / group / f"{stem}.yaml").write_text(f"{head}{text}\n")
        return tmp_path

    return write


def test_two_presets_of_one_part_that_differ_in_one_number_differ_in_that(presets: Presets) -> None:
    place = presets(norm__exact="defaults: [layernorm, _self_]\neps: 1e-12")
    assert one(SIZE, "norm=layernorm,exact", config_dirs=(place,)) == Against(factors=("norm",))


def test_a_width_that_matching_set_is_no_difference_of_the_presets(presets: Presets) -> None:
    place = presets(ffn__a="defaults: [glu, _self_]\nbias: true", ffn__b="defaults: [glu, _self_]")
    words = ("model.d_model=32", "ffn=a,b", "match=params", "sweep.match_multiple=1")
    found = one(*words, config_dirs=(place,))
    assert (
        found.comes_with[0].startswith("ffn.width: null -> 90 (matched)") and found.confounded == ()
    )


def test_two_presets_of_one_part_that_differ_in_more_are_confounded(presets: Presets) -> None:
    place = presets(norm__exact="defaults: [layernorm, _self_]\neps: 1e-12\nbias: false")
    found = one(SIZE, "norm=layernorm,exact", config_dirs=(place,))
    assert found.confounded == ("norm.eps: 1e-6 -> 1e-12", "norm.bias: true -> false")


def test_a_preset_of_another_part_may_hide_an_eps(presets: Presets) -> None:
    place = presets(norm__mine="defaults: [rmsnorm, _self_]\neps: 1e-5")
    found = one(SIZE, "norm=layernorm,mine", config_dirs=(place,))
    assert found.confounded == ("norm.eps: 1e-6 -> 1e-5",)


def test_whatever_experiments_differ_in_beside_parts_is_named(presets: Presets) -> None:
    place = presets(
        experiment__a="defaults: [override /norm: rmsnorm]\ntrain: {lr: 1e-3}\nseed_data: 5",
        experiment__b="defaults: [override /norm: layernorm]",
    )
    found = one(SIZE, "experiment=a,b", config_dirs=(place,))
    assert found.factors == ("experiment",)
    assert found.comes_with[:2] == ("norm.part: rmsnorm -> layernorm", "norm.offset: 0.0 -> none")
    assert found.confounded == ("train.lr: 0.001 -> 0.003", "seed_data: 5 -> none")


def test_experiments_that_differ_in_one_value_differ_in_that(presets: Presets) -> None:
    place = presets(experiment__a="train: {lr: 1e-3}", experiment__b="train: {lr: 1e-2}")
    assert one(SIZE, "experiment=a,b", config_dirs=(place,)) == Against(factors=("experiment",))


@pytest.mark.parametrize(
    ("axis", "path"),
    [
        ("model.embed_norm=layernorm,scalenorm", "model.embed_norm"),
        (
            "model.layers=[{at:0,norm:layernorm}],[{at:0,norm:scalenorm}]",
            "model.layers[0].norm",
        ),
    ],
)
def test_parts_inside_the_model_are_choices_too(axis: str, path: str) -> None:
    found = one(SIZE, axis)
    assert found.factors == (axis.partition("=")[0],)
    assert found.confounded == (f"{path}.eps: 1e-6 -> 0.001",)
    assert f"{path}.bias: true -> none" in found.comes_with
    assert not any(f"{path}.part" in text for text in found.comes_with)


def test_a_rule_against_none_brings_its_part() -> None:
    found = one(SIZE, "model.layers=[],[{at:0,norm:scalenorm}]")
    assert found.confounded == ()
    assert "model.layers[0].norm.eps: none -> 0.001" in found.comes_with


def test_a_rule_follows_the_norm_that_it_changes() -> None:
    found = one(SIZE, "norm=layernorm,rmsnorm", "model.layers=[{at:0,norm:{eps:1e-3}}]")
    assert found.factors == ("norm",) and found.confounded == ()
    assert "model.layers[0].norm.part: layernorm -> rmsnorm" in found.comes_with


def test_further_grids_count_as_they_differ() -> None:
    found = stands(SIZE, "train.lr=1e-3", "sweep.also=['norm=rmsnorm train.lr=1e-4']")
    assert [each.factors for each in found.values()] == [("norm", "train.lr")]


def test_a_mismatch_is_relative_to_the_stack_of_the_baseline() -> None:
    found = one(SIZE, "ffn=relu", "model.d_ff=16,32")
    # q, k, v, out: 4 x 16 x 16; three norms: 6 x 16; up, down and their biases.
    stack = [4 * 256 + 96 + 2 * 16 * width + width + 16 for width in (16, 32)]
    assert found.parameters == pytest.approx(stack[1] / stack[0] - 1)
    # A token: the four maps, its 128 scores and their sums, and the FFN; two FLOPs a product.
    assert found.flops == pytest.approx(1024 / (4 * 2 * 256 + 2 * 2 * 128 * 16 + 1024))
    gone = one(SIZE, "ffn=none", "attention=naive,none", "norm=none")
    assert (gone.parameters, gone.flops) == (-1, -1)
    made = one(SIZE, "ffn=none", "attention=none,naive", "norm=none")
    assert (made.parameters, made.flops) == (1, 1)  # of nothing


def test_a_branch_gain_is_named_from_either_side(install: Any) -> None:
    install(
        "encoderkit-gained",
        ("placement", "gained"),
        part=(
            "from encoderkit.nn import Placement\n"
            "class Plain(Placement):\n"
            "    def __init__(self, opts, site):\n"
            "        super().__init__()\n"
            "        self.norm = site.norm()\n"
            "        self.branch_gain = 0.25\n"
            "    def forward(self, x, f, ctx):\n"
            "        return x + f(self.norm(x, ctx), ctx)\n"
        ),
    )
    there = one(SIZE, "placement=pre,gained")
    assert there.comes_with[-1] == "gain of branches at the start: 1 -> 0.25"
    back = one(SIZE, "placement=gained,pre")
    assert back.comes_with[-1] == "gain of branches at the start: 0.25 -> 1"


def test_weight_decay_that_reaches_other_tensors_confounds(install: Any) -> None:
    install(
        "encoderkit-spared",
        ("norm", "spared"),
        part=(
            "import torch\n"
            "from torch import nn\n"
            "from encoderkit.nn import Norm\n"
            "class Plain(Norm):\n"
            "    weight_decay = True\n"
            "    def __init__(self, opts, site):\n"
            "        super().__init__()\n"
            "        self.weight = nn.Parameter(torch.ones(site.d_model))\n"
            "    def forward(self, x, ctx):\n"
            "        return x * self.weight\n"
        ),
    )
    found = one(SIZE, "norm=rmsnorm,spared", "model.n_heads=2")
    assert found.confounded == (
        "weight decay of attention.placement.before.weight: false -> true",
        "weight decay of ffn.placement.before.weight: false -> true",
        "weight decay of final.weight: false -> true",
    )


def test_a_plan_notes_what_is_confounded() -> None:
    found: Plan = plan([*SMALL, SIZE, "ffn=gelu,swiglu"])
    assert notes(found) == ["confounded: ffn=swiglu: ffn.bias: true -> false"]
    assert found.cells[1].against == {
        "baseline": "ffn=gelu",
        "factors": ["ffn"],
        "comes_with": list(found.variants[1].against.comes_with),
        "confounded": ["ffn.bias: true -> false"],
        "parameters": found.variants[1].against.parameters,
        "flops": found.variants[1].against.flops,
    }
