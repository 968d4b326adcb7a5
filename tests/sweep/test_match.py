"""Budgets that agree: matched widths against every other multiple, matched steps by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from encoderkit.config.schema import Config
from encoderkit.errors import ConfigError
from encoderkit.sweep.plan import Plan, notes, plan

TRAIN = ["train.steps=200", "train.warmup=20"]
SMALL = [*TRAIN, "model.n_layers=1", "model.d_model=32"]


def fault(*words: str, base: list[str] = SMALL) -> str:
    with pytest.raises(ConfigError) as caught:
        plan([*base, *words])
    (found,) = caught.value.faults
    return str(found)


def off(found: Plan, match: str) -> list[float]:
    name = {"params": "parameters", "flops": "flops"}[match]
    return [getattr(each.against, name) for each in found.variants[1:]]


@pytest.mark.parametrize("match", ["params", "flops"])
@pytest.mark.parametrize("multiple", [1, 8, 11])
def test_no_other_multiple_is_nearer(match: str, multiple: int) -> None:
    words = ["norm=none", "ffn.bias=true"]
    tried = range(multiple, 129, multiple)
    widths = f"ffn.width={','.join(map(str, tried))}"
    every = plan([*SMALL, *words, "ffn=gelu", f"sweep.also=['ffn=swiglu {widths}']"])
    distances = dict(zip(tried, map(abs, off(every, match)), strict=True))
    nearest = min(distances, key=lambda each: distances[each])
    words += [f"match={match}", f"sweep.match_multiple={multiple}"]
    found = plan([*SMALL, *words, "ffn=gelu,swiglu"])
    width, (mismatch,) = found.cells[1].tree["ffn"]["width"], off(found, match)
    if width is None:  # the default of a GLU is as near as any multiple
        assert abs(mismatch) <= distances[nearest] + 1e-12
    else:
        assert width == nearest and abs(mismatch) == pytest.approx(distances[nearest])


def test_a_matched_width_stands_in_the_cell_and_beside_the_variant() -> None:
    found = plan([*SMALL, "ffn=gelu,swiglu", "match=params", "sweep.match_multiple=1"])
    assert [cell.tree["ffn"]["width"] for cell in found] == [None, 87]
    assert found.cells[1].overrides[-2:] == ("ffn.width=87", "seed=0")
    assert "ffn.width=87" in found.cells[1].reproduce
    assert "ffn.width: null -> 87 (matched)" in found.variants[1].against.comes_with
    assert found.variants[1].against.confounded == ("ffn.bias: true -> false",)
    assert found.variants[1].against.factors == ("ffn",)


def test_a_variant_that_is_as_near_already_stays_as_it_is() -> None:
    found = plan([*SMALL, "ffn=gelu,relu", "match=params", "norm=rmsnorm"])
    assert [cell.tree["ffn"]["width"] for cell in found] == [None, None]
    assert notes(found) == []


def test_the_baseline_is_what_others_are_matched_to() -> None:
    words = ["ffn=gelu,swiglu", "match=params", "sweep.baseline=ffn=swiglu", "model.d_ff=126"]
    found = plan([*SMALL, *words, "sweep.match_multiple=1"])
    assert found.baseline == "ffn=swiglu"
    by_label = {cell.label: cell.tree["ffn"]["width"] for cell in found}
    assert by_label["ffn=swiglu"] is None and by_label["ffn=gelu"] == 129


def test_more_than_one_percent_is_noted() -> None:
    found = plan(
        [*SMALL, "ffn=gelu,swiglu", "ffn.bias=true", "match=params", "sweep.match_multiple=20"]
    )
    (mismatch,) = off(found, "params")
    assert 0.01 < abs(mismatch) < 0.05
    assert notes(found) == [f"ffn=swiglu: {mismatch:+.1%} parameters after matching"]
    by_flops = plan(
        [*SMALL, "ffn=gelu,swiglu", "ffn.bias=true", "match=flops", "sweep.match_multiple=20"]
    )
    assert all(text.endswith(" flops after matching") for text in notes(by_flops))


def test_more_than_five_percent_is_refused() -> None:
    small = [*TRAIN, "model.n_layers=1", "model.d_model=16"]
    assert fault("ffn=gelu,swiglu", "match=params", base=small) == (
        "ffn=swiglu: sweep.match=params: 5.4% is the nearest to the baseline's params that "
        "ffn.width gives. Choose match=none, a smaller sweep.match_multiple, or another baseline."
    )


def test_a_width_that_was_said_is_not_set() -> None:
    words = "sweep.match=params: would set ffn.width, which was said already. Leave ffn.width out,"
    assert words in fault("ffn=gelu,swiglu", "ffn.width=64", "match=params")


def test_a_width_that_a_preset_says_is_not_set(tmp_path: Any) -> None:
    (tmp_path / "ffn").mkdir()
    (tmp_path / "ffn" / "wide.yaml").write_text("defaults: [mlp, _self_]\nwidth: 512\n")
    with pytest.raises(ConfigError, match="ffn=wide: .* would set ffn.width, which was said"):
        plan([*SMALL, "ffn=relu,wide", "match=params"], config_dirs=[tmp_path])


def test_without_a_free_width_nothing_can_be_matched() -> None:
    assert fault("ffn=gelu,none", "match=params") == (
        "ffn=none: sweep.match=params: the params do not depend on model.d_ff, so nothing can be "
        "matched. Choose match=none."
    )


LONG = "a part's FLOPs depend on the data, and are unknown."


def test_what_is_unknown_cannot_be_matched() -> None:
    words = ("position=learned,none", "position.max_len=64", "sweep.optional=[position.max_len]")
    assert f"sweep.match=flops: {LONG} Try match=params." in fault(*words, "match=flops")
    assert f"sweep.budget=flops: {LONG} Try budget=tokens." in fault(*words, "budget=flops")


def test_variants_that_cannot_be_matched_may_be_left_out() -> None:
    found = plan([*SMALL, "ffn=gelu,relu,none", "match=params"], skip_illegal=True)
    assert found.labels == ["ffn=gelu", "ffn=relu"]
    assert list(found.illegal) == ["ffn=none"]


def steps(found: Plan) -> list[tuple[int, int]]:
    return [(cell.tree["train"]["steps"], cell.tree["train"]["warmup"]) for cell in found]


def test_tokens_are_spent_alike() -> None:
    found = plan([*SMALL, "train.batch=8,16,4", "budget=tokens"])
    assert steps(found) == [(200, 20), (100, 10), (400, 40)]
    assert "train.steps: 200 -> 100 (matched)" in found.variants[1].against.comes_with
    assert "train.warmup: 20 -> 10 (matched)" in found.variants[1].against.comes_with


def test_a_long_warm_up_shrinks_before_the_steps_do() -> None:
    words = ["train.steps=200", "train.warmup=200", *SMALL[2:], "budget=tokens"]
    assert steps(plan([*words, "train.batch=8,32,2"])) == [(200, 200), (50, 50), (800, 800)]


def test_flops_are_spent_alike() -> None:
    found = plan([*SMALL, "ffn=gelu,none", "budget=flops"])
    whole, less = (each.flops for each in found.variants)
    assert whole is not None and less is not None
    assert steps(found)[1][0] == round(200 * whole / less) > 200


def test_steps_that_agree_already_stay() -> None:
    assert steps(plan([*SMALL, "norm=layernorm,none", "budget=tokens"])) == [(200, 20)] * 2


@pytest.mark.parametrize("name", ["train.steps=200,100", "train.warmup=20,10"])
def test_steps_that_vary_are_not_set(name: str) -> None:
    key = name.partition("=")[0]
    base = [word for word in SMALL if not word.startswith(key)]
    axes = (name, "train.batch=8,16", f"sweep.zip=[{key}+train.batch]", "budget=tokens")
    if key == "train.steps":
        assert steps(plan([*base, *axes]))[1][0] == 100  # they agree, so nothing is set
        axes = (name.replace("100", "150"), *axes[1:])
    words = f"sweep.budget=tokens: would set {key}, which was said already. Choose budget=steps."
    assert words in fault(*axes, base=base)


def test_steps_that_cannot_agree_are_refused() -> None:
    base = ["train.steps=5", "train.warmup=1", *SMALL[2:]]
    found = fault("train.batch=8,12", "budget=tokens", base=base)
    assert found == (
        "train.batch=12: sweep.budget=tokens: 10.0% is the nearest to the baseline's tokens that "
        "steps give. Choose budget=steps, or more steps."
    )


def test_width_and_steps_are_matched_in_turn() -> None:
    words = ["ffn=gelu,swiglu", "train.batch=8,16", "sweep.zip=[ffn+train.batch]"]
    found = plan([*SMALL, *words, "match=params", "budget=flops", "sweep.match_multiple=1"])
    assert found.cells[1].tree["ffn"]["width"] == 87
    whole, less = (each.flops for each in found.variants)
    assert whole is not None and less is not None
    assert steps(found)[1][0] == round(200 * 8 * whole / (16 * less))


def test_a_budget_of_seconds_is_timed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as slow, half the steps; and the same cells again, whatever the clock says then."""
    from encoderkit.train import trial

    def timed(config: Config, factor: float = 1.0) -> tuple[float, int]:
        return factor * (0.02 if config.ffn.entry.part.name == "glu" else 0.01), 0

    words = [*SMALL, "train.steps=40", "train.warmup=4", "ffn=gelu,swiglu", "budget=seconds"]
    words = [*dict((w.partition("=")[0], w) for w in words).values(), f"sweep.dir={tmp_path}"]
    monkeypatch.setattr(trial, "trial", timed)
    found = plan(words)
    assert [cell.tree["train"]["steps"] for cell in found] == [40, 20]
    assert [cell.tree["train"]["warmup"] for cell in found] == [4, 2]
    assert [each.seconds for each in found.variants] == [0.01, 0.02]
    found.save()
    monkeypatch.setattr(trial, "trial", lambda config: timed(config, 1 + len(config.said)))
    assert [cell.id for cell in plan(words)] == [cell.id for cell in found]
    other = plan([*words, "train.lr=1e-4"])  # another step, which is timed anew
    assert other.variants[0].seconds != 0.01
    monkeypatch.undo()
    real = plan([*words[:-1], f"sweep.dir={tmp_path}/real"])
    assert all(each.seconds and each.seconds > 0 for each in real.variants)
