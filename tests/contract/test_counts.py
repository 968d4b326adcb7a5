"""Every preset and part composes, builds, and has the parameters that its formula says."""

from __future__ import annotations

import pytest

from encoderkit import build, configure
from encoderkit.config.compose import Composer
from encoderkit.config.presets import Presets
from encoderkit.nn.build import build_model
from encoderkit.plugins import registry
from encoderkit.sweep.grid import grid

D, L, F = 64, 3, 256
W = 168  # the multiple of 8 nearest to 2/3 of 256
LAYERNORM, MLP, ATTENTION = 2 * D, F * D + F + D * F + D, 4 * D * D
NORMS = 2 * L + 1  # two in each layer, one at the end (pre-norm)
USUAL = L * (ATTENTION + MLP) + NORMS * LAYERNORM

FORMULAS = {
    "norm": {
        "layernorm": USUAL,
        "rmsnorm": USUAL - NORMS * D,
        "batchnorm": USUAL,
        "scalenorm": USUAL - NORMS * LAYERNORM + NORMS,
        "dyt": USUAL + NORMS,
        "derf": USUAL + NORMS * 2,
        "none": USUAL - NORMS * LAYERNORM,
    },
    "placement": {
        "pre": USUAL,
        "post": USUAL - LAYERNORM,
        "sandwich": USUAL + 2 * L * LAYERNORM,
        "reordered": USUAL,
        "layerscale": USUAL + 2 * L * D,
        "deepnorm": USUAL - LAYERNORM,
        "residual2": USUAL,
        "rezero": USUAL - NORMS * LAYERNORM + 2 * L,
        "none": USUAL - LAYERNORM,
    },
    "ffn": {
        **dict.fromkeys(["mlp", "relu", "gelu", "silu", "relu2"], USUAL),
        **dict.fromkeys(
            ["glu", "swiglu", "geglu", "reglu", "bilinear", "sigmoid_glu"],
            USUAL - L * MLP + L * 3 * W * D,
        ),
        "moe": USUAL - L * MLP + L * 8 * (D + 2 * F * D),
        "none": USUAL - L * (MLP + LAYERNORM),
    },
    "attention": {
        "sdpa": USUAL,
        **dict.fromkeys(["naive", "flex", "flash", "linear"], USUAL),
        "fnet": USUAL - L * ATTENTION,
        "none": USUAL - L * (ATTENTION + LAYERNORM),
    },
    "position": {
        **dict.fromkeys(["none", "sinusoidal", "rope", "alibi"], USUAL),
        "t5": USUAL + 32 * 4,
        "learned": USUAL + 512 * D,
    },
    "init": dict.fromkeys(["xavier", "torch", "small", "bert", "deepnorm"], USUAL),
    "model": {
        "tiny": USUAL,
        "parallel": USUAL - L * LAYERNORM,
        "macaron": USUAL + L * (MLP + LAYERNORM),
        "ffn_only": USUAL - L * (ATTENTION + LAYERNORM),
        "attention_only": USUAL - L * (MLP + LAYERNORM),
        "small": 6 * (4 * 256**2 + 8 * 256**2 + 5 * 256 + 4 * 256) + 2 * 256,
        "base": 6 * (4 * 512**2 + 8 * 512**2 + 5 * 512 + 4 * 512) + 2 * 512,
    },
}
ALONG = {"rezero": ["norm=none"]}  # what a choice cannot do without
SIZES = {"sort": (12, 12), "mlm_pydoc": (257, 256)}


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_no_choice_is_without_a_formula():
    stated = {group: set(formulas) for group, formulas in FORMULAS.items()} | {"task": set(SIZES)}
    groups = Presets(registry()).groups
    ours = {
        group: {n for n, source in groups[group].items() if source.owner.startswith("encoderkit ")}
        for group in stated
    }
    assert ours == stated


@pytest.mark.parametrize(
    ("group", "choice"), [(group, choice) for group in FORMULAS for choice in FORMULAS[group]]
)
def test_parameters(group, choice):
    words = [f"{group}={choice}", *ALONG.get(choice, [])]
    assert count(build(*words, device="meta")) == FORMULAS[group][choice]


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        (["ffn.width=100"], USUAL - L * MLP + L * (2 * 100 * D + 100 + D)),
        (["ffn.bias=false"], USUAL - L * (F + D)),
        (["ffn=swiglu", "ffn.width=256"], USUAL - L * MLP + L * 3 * 256 * D),
        (["ffn=swiglu", "ffn.bias=true"], USUAL - L * MLP + L * (3 * W * D + 2 * W + D)),
        (["ffn=moe", "ffn.experts=3", "ffn.bias=true"], USUAL + L * (2 * MLP + 3 * D)),
        (
            ["ffn=moe", "ffn.experts=3", "ffn.gated=true"],
            USUAL - L * MLP + L * 3 * (3 * W * D + D),
        ),
        (["position=t5", "position.shared=false", "position.buckets=16"], USUAL + L * 16 * 4),
        (["attention.bias=true"], USUAL + L * 4 * D),
        (["attention=linear", "attention.bias=true"], USUAL + L * 4 * D),
        (["attention.n_kv_heads=1"], USUAL - L * 2 * D * (D - D // 4)),
        (["attention.qk_norm=head"], USUAL + L * 2 * 2 * (D // 4)),
        (["attention.qk_norm=all"], USUAL + L * 2 * 2 * D),
        (["norm.bias=false"], USUAL - NORMS * D),
        (["model.final_norm=false"], USUAL - LAYERNORM),
        (["placement=post", "model.final_norm=true"], USUAL),
        (["model.sublayers=[ffn]"], USUAL - L * (ATTENTION + LAYERNORM)),
        (["model.sublayers=[attention,ffn,ffn]"], USUAL + L * (MLP + LAYERNORM)),
    ],
)
def test_options_of_size(overrides, wanted):
    assert count(build(*overrides, device="meta")) == wanted


@pytest.mark.parametrize("task", SIZES)
def test_a_model_adds_embedding_and_head(task):
    vocabulary, outputs = SIZES[task]
    model = build_model(configure(f"task={task}"), vocabulary, outputs, device="meta")
    assert count(model) == USUAL + vocabulary * D + outputs * D + outputs


EXPERIMENTS = Presets(registry()).groups["experiment"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_point_of_every_experiment_builds(name):
    with Composer(registry()) as composer:
        points = grid(composer, [f"experiment={name}"]).points
        assert len(points) > 1
        for point in points:
            assert count(build(composer.configure(point), device="meta")) > 0


@pytest.mark.parametrize("budget", Presets(registry()).groups["train"])
def test_every_budget_composes(budget):
    assert configure(f"train={budget}").train.steps > 0
