"""What somebody set and what has no effect is refused; the same as a default is silent."""

from __future__ import annotations

import dataclasses

import pytest

from encoderkit import build
from encoderkit.api import Options, option
from encoderkit.config.check import check, plain
from encoderkit.config.live import spoken
from encoderkit.config.request import configure
from encoderkit.config.schema import ModelOptions
from encoderkit.errors import ConfigError
from encoderkit.plugins import registry
from encoderkit_builtin.catalogue import RMSNormOptions
from encoderkit_builtin.catalogue_ffns import MLPOptions
from encoderkit_builtin.catalogue_positions import RoPEOptions

WIDTH = "has no effect with position.width=2. Leave it out, or choose another position.width."
RULE = "{at: 0, position: {theta: 500, width: 2}}"
UNREAD = "has no effect: no part reads it. Leave it out."
NOWHERE = "stands in no layer, others do by model.layers. Leave it out."
ALL = 'model.layers=[{at: ":", ffn: relu}]'

REFUSED = {
    "position=rope position.width=2 position.theta=500": [f"position.theta=500.0: {WIDTH}"],
    "position=rope position.width=2 position.layout=interleaved": [
        f"position.layout=interleaved: {WIDTH}"
    ],
    "norm=none model.final_norm=true": [
        "model.final_norm=true: has no effect with norm=none. Leave it out, or choose another norm."
    ],
    "sweep.dir=a sweep.name=b": [
        "sweep.name=b: has no effect with sweep.dir=a. Leave it out, or choose another sweep.dir."
    ],
    "ffn=none model.d_ff=8": [f"model.d_ff=8: {UNREAD}"],
    "ffn.width=8 model.d_ff=8": [f"model.d_ff=8: {UNREAD}"],
    "attention=none model.n_heads=2": [f"model.n_heads=2: {UNREAD}"],
    "attention=none model.n_heads=2 ffn=none model.d_ff=8": [
        f"model.d_ff=8: {UNREAD}",
        f"model.n_heads=2: {UNREAD}",
    ],
    "model.sublayers=[attention] ffn.bias=false": [
        "ffn.bias=false: has no effect: mlp stands in no layer. Leave it out."
    ],
    f"ffn=swiglu ffn.bias=true {ALL}": [
        f"ffn: has no effect: glu {NOWHERE}",
        f"ffn.bias=true: has no effect: glu {NOWHERE}",
    ],
    'ffn.width=16 model.layers=[{at: ":", ffn: {width: 8}}]': [
        f"ffn.width=16: has no effect: mlp {NOWHERE}"
    ],
    "model.layers=[{at: 0, norm: layernorm}, {at: 0, norm: rmsnorm}]": [
        f"model.layers[0].norm: has no effect: layernorm {NOWHERE}"
    ],
    "model.layers=[{at: 0, slot: ffn, position: none}, {at: 0, slot: ffn, position: rope}]": [
        "position=rope: no part asks for it: there is no attention that reads it. "
        "Try position=none."
    ],
    "norm=scalenorm norm.eps=1 placement=none attention=none ffn=none model.final_norm=false": [
        "norm=scalenorm: no part asks for a norm with placement=none. Try norm=none.",
        "placement: has no effect: none",
    ],
    f"position=rope model.layers=[{RULE}]": [f"model.layers[0].position.theta=500.0: {WIDTH}"],
    'position=rope position.theta=500 model.layers=[{at: ":", position: {width: 2}}]': [
        f"position.theta=500.0: {WIDTH}"
    ],
}


def words(request: str) -> list[str]:
    """Return the overrides of a line; a value may hold spaces inside brackets."""
    found: list[str] = []
    for word in request.split():
        if found and found[-1].count("[") + found[-1].count("{") > found[-1].count("]") + found[
            -1
        ].count("}"):
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


@pytest.mark.parametrize("request_", REFUSED)
def test_a_key_without_effect_is_refused_where_somebody_set_it(request_: str) -> None:
    overrides = words(request_)
    with pytest.raises(ConfigError) as caught:
        build(configure(*overrides))
    found = list(map(str, caught.value.faults))
    assert [f.startswith(w) for f, w in zip(found, REFUSED[request_], strict=True)], found


LIVE = [
    "position=rope position.width=4 position.theta=500",
    "position=rope position.width=2",
    "norm=none",
    "ffn=none",
    "attention=none",
    "model.sublayers=[attention]",
    "ffn=none attention=none placement=pre",
    ALL,
    f"norm=rmsnorm norm.eps=1 {ALL}",
    # A rule that says some options keeps the others of the choice above it.
    'ffn=swiglu ffn.bias=true model.layers=[{at: ":", ffn: {width: 8}}]',
    "position=rope position.theta=500 model.layers=[{at: 0, position: {width: 2}}]",
    'norm=rmsnorm norm.eps=1 placement=post model.layers=[{at: ":", norm: {offset: 1}}]',
    "norm=none model.embed_norm={part: rmsnorm, eps: 1}",
    "model.layers=[{at: 0, norm: none, placement: none, attention: none}]",
]


@pytest.mark.parametrize("request_", LIVE)
def test_what_has_an_effect_is_taken(request_: str) -> None:
    build(configure(*words(request_)))


def test_what_the_files_say_is_silent() -> None:
    tree = plain(configure("ffn=none", "position=rope", "position.width=2"))
    config = check(tree, registry())
    assert config.said == frozenset() and config.position.options.theta == 10000
    build(config)
    build(tree)  # config.yaml says all keys


def test_what_was_said_is_no_part_of_a_configuration() -> None:
    said, silent = configure("norm.eps=1e-6"), configure()
    assert said.said == {"norm.eps"} and said == silent and plain(said) == plain(silent)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (("norm=rmsnorm", "seeds=3"), {"norm", "sweep.seeds"}),
        (
            ("model.layers=[{at: 0, norm: {eps: 1}}]",),
            {
                *["model.layers", "model.layers[0]", "model.layers[0].at"],
                *["model.layers[0].norm", "model.layers[0].norm.eps"],
            },
        ),
        (({"norm": "rmsnorm", "model.d_ff": 8},), {"norm", "model.d_ff"}),
        (({"norm": {"part": "rmsnorm", "eps": 1}},), {"norm", "norm.part", "norm.eps"}),
        (({"norm": RMSNormOptions(offset=1)},), {"norm", "norm.offset"}),
        (({"model": ModelOptions(d_model=8, n_layers=1, n_heads=2)},), {"model"}),
        (({},), set()),
        ((), set()),
    ],
)
def test_what_a_request_says(request_: object, said: set[str]) -> None:
    assert configure(*request_).said == said  # type: ignore[misc]


def test_a_mapping_is_refused_alike() -> None:
    with pytest.raises(ConfigError, match="position.theta=500.0: has no effect with"):
        build({"position": {"part": "rope", "width": 2, "theta": 500.0}})
    with pytest.raises(ConfigError, match="position.theta=500.0: has no effect with"):
        build({"position": RoPEOptions(width=2, theta=500.0)})
    with pytest.raises(ConfigError, match="model.d_ff=8: has no effect"):
        build({"ffn": MLPOptions(width=3), "model.d_ff": 8})


@dataclasses.dataclass(slots=True, kw_only=True)
class Strange(Options):
    """Options that are alive by what stands elsewhere."""

    gate: float = option(1.0, "a gate", when="ffn.part=glu and train.schedule!=constant")
    wide: bool = option(False, "wide", when="ffn.width=null")
    odd: bool = option(False, "odd", when="ffn.nothing!=3")


@pytest.mark.parametrize(
    ("others", "said", "reason"),
    [
        ((), "norm.gate", "ffn=mlp"),
        (("ffn=swiglu",), "norm.gate", ""),
        (("ffn=swiglu", "train.schedule=constant"), "norm.gate", "train.schedule=constant"),
        (('model.layers=[{at: "1:", ffn: swiglu}]',), "norm.gate", ""),
        (('model.layers=[{at: "1:", ffn: swiglu, norm: rmsnorm}]',), "norm.gate", "ffn=mlp"),
        (("ffn.width=3",), "norm.wide", "ffn.width=3"),
        ((), "norm.wide", ""),
        ((), "norm.odd", ""),
    ],
)
def test_conditions_speak_of_the_whole_configuration(
    monkeypatch: pytest.MonkeyPatch, others: tuple[str, ...], said: str, reason: str
) -> None:
    entry = registry().entries["norm", "layernorm"]
    part = dataclasses.replace(entry.part, options=Strange)
    monkeypatch.setitem(
        registry().entries, ("norm", "layernorm"), dataclasses.replace(entry, part=part)
    )
    request = (*others, f"{said}={'2' if said == 'norm.gate' else 'true'}")
    if not reason:
        configure(*request)
        return
    with pytest.raises(ConfigError, match=f"has no effect with {reason}[.] Leave it out"):
        configure(*request)


def test_keys_inside_a_value() -> None:
    assert list(spoken("a", {"b": [1, {"c": 2}], "d": None})) == [
        *["a", "a.b", "a.b[1]", "a.b[1].c", "a.d"]
    ]
