"""What parts are asked for and cannot do: refused before anything trains, in the same words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from encoderkit.api import Options, Part, Traits, option
from encoderkit.cli import main
from encoderkit.config.needs import conflicts
from encoderkit.config.request import configure
from encoderkit.errors import ConfigError
from encoderkit.nn.build import build, build_model
from encoderkit.plugins import registry
from encoderkit.registry import Entry, Owner, Registry
from encoderkit.sweep.plan import plan

OWNER = Owner("strange", "2.0")
OURS = str(registry().entries[("attention", "sdpa")].owner)
CAPPED = (
    f"attention=sdpa: cannot serve attention.softcap=30.0 (softcap) ({OURS}). "
    "naive, flex can: try attention=naive."
)
TURNED = (
    f"attention=fnet: cannot serve position=rope (rotation) ({OURS}). "
    "naive, sdpa, flex, linear can: try attention=naive."
)
REQUESTS = {
    ("attention=sdpa", "attention.softcap=30"): CAPPED,
    ("attention=fnet", "position=rope"): TURNED,
}


@pytest.fixture(autouse=True)
def ours_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the attentions of packages that happen to be installed: the messages list all."""
    for key, entry in list(registry().entries.items()):
        if key[0] == "attention" and entry.owner.distribution != "encoderkit":
            monkeypatch.delitem(registry().entries, key)


def words(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        build(*overrides, device="cpu")
    return str(caught.value)


@pytest.mark.parametrize("request_", REQUESTS)
def test_build_says_it(request_: tuple[str, ...]) -> None:
    assert words(*request_) == REQUESTS[request_]


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("command", ["train", "train -m", "sweep"])
def test_commands_say_it(
    command: str, request_: tuple[str, ...], capsys: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), *request_]) == 2
    assert capsys.readouterr().err == f"ConfigError: {REQUESTS[request_]}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_names_the_variant() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(["attention=sdpa,naive", "attention.softcap=30"])
    assert list(map(str, caught.value.faults)) == [f"attention=sdpa: {CAPPED}"]


FLASH = (
    "attention=flash: cannot serve attention.dropout=0.1 (dropout), attention.softcap=30.0 "
    f"(softcap), run.device=auto (cpu), train.precision=fp32 (float32) ({OURS}). It runs on cuda. "
    "It computes in bfloat16 and float16. naive can: try attention=naive."
)


def test_all_conflicts_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError) as caught:
        plan(["attention=flash", "attention.softcap=30", "attention.dropout=0.1"])
    assert str(caught.value) == FLASH


@pytest.mark.parametrize(
    ("cuda", "request_", "wanted"),
    [
        (False, ["train.precision=bf16"], "run.device=auto (cpu)"),
        (False, ["train.precision=bf16", "run.device=cpu"], "run.device=cpu"),
        (True, ["train.precision=bf16", "run.device=cpu"], "run.device=cpu"),
        (False, ["run.device=cuda"], "train.precision=fp32 (float32)"),
        (True, [], "train.precision=fp32 (float32)"),
    ],
)
def test_a_device_or_precision_is_refused_before_anything_trains(
    cuda: bool, request_: list[str], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    why = "It runs on cuda." if "device" in wanted else "It computes in bfloat16 and float16."
    with pytest.raises(ConfigError) as caught:
        plan(["attention=flash", *request_])
    assert str(caught.value) == (
        f"attention=flash: cannot serve {wanted} ({OURS}). {why} "
        "naive, sdpa, flex, linear, fnet can: try attention=naive."
    )


def test_where_there_is_cuda_it_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert len(plan(["attention=flash", "train.precision=bf16"]).cells) == 1


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        ({"device": "cpu", "dtype": torch.bfloat16}, "device=cpu"),
        ({"device": "cuda"}, "dtype=float32"),
        ({"dtype": torch.float64}, "device=cpu, dtype=float64"),
    ],
)
def test_a_stack_elsewhere_is_refused(place: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"cannot serve {wanted} ({OURS})")):
        build("attention=flash", **place)


def test_a_count_is_allowed_anywhere() -> None:
    assert sum(p.numel() for p in build("attention=flash", device="meta").parameters()) > 0


def test_a_model_is_for_training() -> None:
    with pytest.raises(ConfigError, match="run.device=cpu"):
        build_model(configure("attention=flash", "run.device=cpu"), 4, 4, device="meta")


# Rules for some layers


def test_a_rule_is_named_where_it_stands() -> None:
    rules = "model.layers=[{at: 1, attention: {part: sdpa, softcap: 2.0}}]"
    assert words("attention=naive", rules) == (
        "model.layers[0].attention=sdpa: cannot serve model.layers[0].attention.softcap=2.0 "
        f"(softcap) ({OURS}). naive, flex can: try model.layers[0].attention=naive."
    )


def test_two_layers_of_one_rule_are_one_fault_and_two_rules_are_two() -> None:
    one = "{at: '1:', attention: fnet}"
    assert "position=rope" in words("position=rope", f"model.layers=[{one}]")
    two = f"model.layers=[{{at: 0, attention: fnet}}, {one}]"
    found = words("position=rope", two)
    assert found.startswith("2 faults in this request:")
    assert "model.layers[0].attention=fnet" in found and "model.layers[1].attention=fnet" in found


def test_a_rule_s_position_is_asked_of_the_attention_of_its_layers() -> None:
    rules = "model.layers=[{at: 0, position: rope}]"
    found = words("attention=fnet", "position=none", rules)
    assert found.startswith("attention=fnet: cannot serve model.layers[0].position=rope (rotation)")


def test_a_layer_without_attention_asks_nothing() -> None:
    rules = "model.layers=[{at: 0, attention: fnet, position: none}]"
    assert build("position=rope", rules, device="meta") is not None


# Other people's parts


@pytest.mark.parametrize("kind", ["norm", "ffn", "placement", "position"])
def test_every_part_may_name_its_devices(kind: str) -> None:
    base = configure({})
    chosen = getattr(base, kind)
    usual = chosen.entry.part
    traits = Traits(devices=frozenset({"cuda"}))
    part = Part(kind, "mine", usual.target, "", usual.options, traits)  # type: ignore[arg-type]
    chosen.entry = Entry(part, OWNER)
    (fault,) = conflicts(base, registry(), {"device=cpu": "cpu"})
    assert str(fault).startswith(f"{kind}=mine: cannot serve device=cpu (strange 2.0). ")


@dataclass(slots=True, kw_only=True)
class Two(Options):
    """Two options that need the same."""

    left: int | None = option(None, "keys to the left", needs="window")
    right: int | None = option(None, "keys to the right", needs="window")
    heads: int = option(1, "heads")


def known(*parts: Part) -> Registry:
    return Registry(entries={(p.kind, p.name): Entry(p, OWNER) for p in parts})


def attention(name: str, *serves: str, options: type[Options] = Options) -> Part:
    traits = Traits(serves=frozenset(serves))  # type: ignore[arg-type]
    return Part("attention", name, "x:X", "", options, traits)


def asked(chosen: Part, options: Options, needs: frozenset[str], *others: Part) -> str:
    """The one fault of an attention with a position that needs something, among others."""
    base = configure({})
    base.attention.entry, base.attention.options = Entry(chosen, OWNER), options
    traits = Traits(needs=needs)  # type: ignore[arg-type]
    base.position.entry = Entry(Part("position", "far", "x:X", "", Options, traits), OWNER)
    (fault,) = conflicts(base, known(chosen, *others), {})
    return str(fault)


BOTH = frozenset({"rotation", "bias"})


def test_none_can_do_all_and_the_nearest_is_named() -> None:
    near, far = attention("near", "rotation"), attention("far")
    assert asked(attention("mine"), Options(), BOTH, far, near) == (
        "attention=mine: cannot serve position=far (bias, rotation) (strange 2.0). "
        "None can do all; attention=near can all but position=far (bias)."
    )


def test_none_can_do_more() -> None:
    assert asked(attention("mine", "bias"), Options(), BOTH, attention("near", "rotation")) == (
        "attention=mine: cannot serve position=far (rotation) (strange 2.0). "
        "No other attention comes nearer."
    )
    assert asked(attention("mine"), Options(), BOTH).endswith("No other attention comes nearer.")


def test_two_options_that_need_the_same_are_both_named() -> None:
    part = attention("mine", options=Two)
    with_both = attention("able", "window", options=Two)
    assert asked(part, Two(left=1, right=2), frozenset(), with_both) == (
        "attention=mine: cannot serve attention.left=1 (window), attention.right=2 (window) "
        "(strange 2.0). able can: try attention=able."
    )


def test_another_must_have_the_options_that_are_set() -> None:
    part = attention("mine", options=Two)
    without = attention("without", "window")
    assert asked(part, Two(left=1, heads=4), frozenset(), without) == (
        "attention=mine: cannot serve attention.left=1 (window) (strange 2.0). "
        "No other attention comes nearer."
    )
    without = attention("without", "rotation", "bias", "window")
    found = asked(part, Two(left=1, heads=4), BOTH, without)
    assert found.endswith(
        "None can do all; attention=without can all but attention.left=1 (window), "
        "attention.heads=4."
    )
