from __future__ import annotations

from typing import Any

import pytest

from encoderkit.errors import ConfigError
from encoderkit.nn import build
from encoderkit.sweep.plan import plan, single

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
