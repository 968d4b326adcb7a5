from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encoderkit.errors import ConfigError
from encoderkit.sweep import axes

LABELS = ["norm=layernorm ffn=gelu", "norm=layernorm ffn=relu", "norm=rmsnorm ffn=gelu"]


def test_a_label_is_what_varies_without_the_seed() -> None:
    point = ("norm=rmsnorm", "train=short", "placement=post", "seed=3", "jobs=2")
    assert axes.label(point, ["norm", "placement", "seed"]) == "norm=rmsnorm placement=post"
    assert axes.label(point, []) == axes.label(point, ["seed"]) == "default"


def test_runner_settings_and_the_seed_are_no_part_of_a_cell() -> None:
    point = ["sweep.dir=x", "seeds=3", "jobs=1", "seed=2", "hydra/launcher=basic", "run.threads=2"]
    assert axes.without_runner([*point, "ffn=relu"]) == ("run.threads=2", "ffn=relu")


def test_a_sweep_is_named_by_what_it_varies_alone() -> None:
    name = axes.digest(["norm=a,b", "ffn=relu"])
    assert re.fullmatch("[0-9a-f]{12}", name)
    assert name == axes.digest(["ffn=relu", "seeds=5", "norm=a,b", "jobs=2"])
    assert name != axes.digest(["norm=a,b", "ffn=gelu"])


@pytest.mark.hazard("own: a name is only a name")
@pytest.mark.parametrize(
    ("label", "slug"),
    [
        ("norm=rmsnorm placement=post", "norm-rmsnorm-placement-post-seed0"),
        ("train.lr=1e-3", "train.lr-1e-3-seed0"),
        ("../x", "x-seed0"),
        ("", "cell-seed0"),
        ("...", "cell-seed0"),
        ("no\nline\0\u202e\U0001f600 end", "no-line-end-seed0"),
        ("=1+1", "1-1-seed0"),
    ],
)
def test_a_slug_is_only_a_name(label: str, slug: str) -> None:
    assert axes.slug(label, 0) == slug


@pytest.mark.hazard("own: a name is only a name", "hydra-ecosystem/hydra#771")
@given(st.text(max_size=300), st.integers(0, 2**63))
def test_every_slug_is_short_and_safe(label: str, seed: int) -> None:
    found = axes.slug(label, seed)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", found)
    assert len(found) <= axes.SLUG_LENGTH and found.endswith(f"-seed{seed}")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("norm=rmsnorm ffn=gelu", LABELS[2]),
        ("norm=rmsnorm", LABELS[2]),
        ("ffn=relu", LABELS[1]),
        ("ffn=gelu norm=layernorm", LABELS[0]),
    ],
)
def test_a_variant_is_found_by_its_label_or_by_enough_of_it(name: str, label: str) -> None:
    assert axes.match(name, LABELS, "sweep.baseline") == label


def test_a_name_of_several_variants_is_refused_with_their_names() -> None:
    with pytest.raises(ConfigError) as caught:
        axes.match("norm=layernorm", LABELS, "sweep.baseline")
    assert str(caught.value) == (
        "sweep.baseline=norm=layernorm: names 2 variants: norm=layernorm ffn=gelu; "
        "norm=layernorm ffn=relu. Add overrides until one is left."
    )


@pytest.mark.parametrize("name", ["norm=rmsnrm ffn=gelu", ""])
def test_an_unknown_variant_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match="must be one of: norm=layernorm ffn=gelu; ") as caught:
        axes.match(name, LABELS, "sweep.baseline")
    assert ("Did you mean norm=rmsnorm ffn=gelu?" in str(caught.value)) == bool(name)


def test_what_shapes_a_sweep_is_part_of_its_name() -> None:
    grid = ["norm=a,b", "placement=c,d"]
    shapes = [
        "match=params",
        "budget=tokens",
        "sweep.zip=[norm+placement]",
        "sweep.one_at_a_time=true",
        "sweep.also=['norm=c']",
        "sweep.optional=[norm.eps]",
        "sweep.exclude=['norm=a']",
        "sweep.match=flops",
    ]
    names = {axes.digest(grid), *(axes.digest([*grid, shape]) for shape in shapes)}
    assert len(names) == len(shapes) + 1
    assert axes.digest([*grid, "sweep.baseline=norm=b", "sweep.name=x"]) == axes.digest(grid)
    assert axes.without_runner([*grid, *shapes]) == tuple(grid)


def test_a_list_says_how_many_more_there_are() -> None:
    assert axes.some(["a", "b"], 2) == "a, b"
    assert axes.some("abcdefg") == "a, b, c, d, e and 2 more"
