from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import encoderkit
from encoderkit.config.request import configure
from encoderkit.errors import ConfigError, PluginError
from encoderkit.nn import FFN, Attention, Branch, Ctx, Init, NoNorm, Norm, Placement, Position, Site
from encoderkit.nn.build import build, build_model, build_stack
from encoderkit.nn.context import key

GOLDEN = Path(__file__).parent.parent / "golden" / "parameter_paths.json"
PINNED = {
    "default": [],
    "rope, swiglu, all biases": ["position=rope", "ffn=swiglu", "ffn.bias=true"]
    + ["attention.bias=true", "norm=batchnorm", "placement=post"],
    "learned, rmsnorm": ["position=learned", "norm=rmsnorm", "placement=none"],
    "repeats": ["model.sublayers=[ffn,attention,ffn]", "norm.bias=false"],
    "parallel, norms of q, k and the embedding": [
        "model.sublayers=[attention+ffn]",
        "model.embed_norm=rmsnorm",
    ]
    + ["attention.qk_norm=head", "position=none"],
    "ffn only": ["attention=none", "norm=none"],
}


@pytest.mark.parametrize("name", PINNED)
def test_parameter_paths_are_public_api(name: str) -> None:
    model = build_model(configure(*PINNED[name], "model.n_layers=1", "model.d_model=8"), 5, 3)
    found = {path: list(tensor.shape) for path, tensor in model.state_dict().items()}
    assert found == json.loads(GOLDEN.read_text())[name]


def test_a_request_comes_in_four_forms() -> None:
    by_words = encoderkit.build("norm=rmsnorm", "ffn=swiglu", "model.d_model=32")
    tree = {"norm": "rmsnorm", "ffn": "swiglu", "model": {"d_model": 32}}
    config = configure(tree)
    for other in (build(tree), build(config), build_stack(config)):
        same(by_words.state_dict(), other.state_dict(), len(other.state_dict()))


def same(a: dict[str, Tensor], b: dict[str, Tensor], count: int) -> None:
    """Check that `count` tensors have a path and a shape in common, and the same bits."""
    shared = [path for path in a if path in b and a[path].shape == b[path].shape]
    assert len(shared) == count
    assert all(torch.equal(a[path], b[path]) for path in shared)


@pytest.mark.parametrize(
    "other,count",
    [
        ("norm=batchnorm", 38),
        ("norm=rmsnorm", 31),
        ("norm=none", 24),
        ("placement=post", 24),
        ("ffn=silu", 38),
        ("ffn=swiglu", 26),
        ("ffn=none", 20),
        ("attention=naive", 38),
        ("attention=none", 20),
        ("position=learned", 38),
        ("position=rope", 38),
        ("model.n_layers=2", 26),
        ("seed_data=3", 38),
    ],
)
@pytest.mark.parametrize("init", ["xavier", "torch"])
def test_variants_share_the_bits_of_the_tensors_they_share(
    other: str, count: int, init: str
) -> None:
    first, second = (build(f"init={init}", *more) for more in ((), (other,)))
    same(first.state_dict(), second.state_dict(), count)


def test_another_seed_and_another_layer_are_another_draw() -> None:
    first, second = build().state_dict(), build("seed_init=1").state_dict()
    drawn = [path for path in first if "branch" in path and path.endswith("weight")]
    assert not any(torch.equal(first[path], second[path]) for path in drawn)
    matrices = [first[path] for path in drawn if first[path].shape == (64, 64)]
    assert len({matrix[0, 0].item() for matrix in matrices}) == len(matrices) == 12


def test_seed_keys_dropout_and_seed_init_weights() -> None:
    stack = build("seed=4", "seed_init=0")
    assert stack.seed == 4
    same(stack.state_dict(), build().state_dict(), 38)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_dtype_does_not_change_the_draw(dtype: torch.dtype) -> None:
    request = ("norm=batchnorm", "position=learned", "init=torch")
    single, cast = build(*request), build(*request, dtype=dtype)
    assert all(t.dtype == dtype for t in cast.state_dict().values())
    same(single.to(dtype).state_dict(), cast.state_dict(), len(cast.state_dict()))


def test_the_users_default_dtype_is_followed_and_left_alone() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        stack = build()
        with pytest.raises(ConfigError):
            build("position=rope", "model.d_model=6", "model.n_heads=2")
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(t.dtype == torch.float64 for t in stack.state_dict().values())
    same(stack.state_dict(), build(dtype=torch.float64).state_dict(), 38)


def test_a_build_leaves_every_generator_alone() -> None:
    before = torch.get_rng_state(), random.getstate()
    build("ffn.dropout=0.1")
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


def test_on_the_meta_device_nothing_is_allocated() -> None:
    stack = build("model=base", "model.n_layers=2", "norm=batchnorm", device="meta")
    assert {t.device.type for t in stack.state_dict().values()} == {"meta"}
    with torch.device("meta"):
        assert next(build().parameters()).device.type == "meta"
    assert sum(p.numel() for p in stack.parameters()) == sum(
        p.numel() for p in build("model=base", "model.n_layers=2").parameters()
    )


@pytest.mark.parametrize(
    "placement,final,norm",
    [
        ("pre", "auto", True),
        ("post", "auto", False),
        ("none", "auto", False),
        ("pre", "false", False),
        ("post", "true", True),
    ],
)
def test_the_placement_says_whether_a_final_norm_is_right(
    placement: str, final: str, norm: bool
) -> None:
    stack = build(f"placement={placement}", f"model.final_norm={final}", "norm=rmsnorm")
    assert isinstance(stack.final, NoNorm) is not norm
    x = torch.rand(2, 3, 64)
    rms = build("norm=rmsnorm").final
    assert torch.allclose(stack(x), rms(stack(x), Ctx), atol=1e-5) is (placement != "pre" or norm)  # type: ignore[arg-type]


def test_sublayers_are_data() -> None:
    stack = build("model.sublayers=[ffn,attention,ffn]", "model.n_layers=2")
    assert [list(layer) for layer in stack.layers] == [["ffn", "attention", "ffn_2"]] * 2  # type: ignore[call-overload]
    assert [list(layer) for layer in build("ffn=none").layers] == [["attention"]] * 3  # type: ignore[call-overload]
    x = torch.rand(2, 3, 64)
    nothing = build("ffn=none", "attention=none", "position=none", "norm=none")
    assert torch.equal(nothing(x), x)


def test_a_part_sees_where_it_stands(stranger: Callable[..., Any]) -> None:
    sites: list[tuple[int, str, str, int, int]] = []

    class Watch(FFN):
        def __init__(self, opts: object, site: Site) -> None:
            super().__init__()
            sites.append((site.layer, site.slot, site.path, site.d_ff, site.n_layers))
            self.norm = site.norm(width=3)
            assert site.position() == "sinusoidal"

    stack = build_stack(stranger("ffn", Watch, "model.n_layers=2", "model.d_model=8"))
    assert sites == [(n, "ffn", f"layers.{n}.ffn.branch", 32, 2) for n in range(2)]
    assert stack.state_dict()["layers.1.ffn.branch.norm.weight"].shape == (3,)


class Drawn(Norm):
    """A norm that draws for itself and has a Linear."""

    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.randn(site.d_model))
        self.map = nn.Linear(site.d_model, site.d_model)


class Owner(Drawn):
    owns_init = True


@pytest.mark.hazard("own: a part that draws shifts later layers")
def test_what_a_part_draws_itself_is_kept_and_reaches_no_other(
    stranger: Callable[..., Any],
) -> None:
    torch.manual_seed(1)
    first = build_stack(stranger("norm", Drawn)).state_dict()
    torch.manual_seed(2)
    second = build_stack(stranger("norm", Drawn)).state_dict()
    same(first, second, len(first))
    same(first, build("norm=none").state_dict(), 24)
    path = "layers.1.ffn.placement.norm"
    wanted = torch.randn(64, generator=torch.Generator().manual_seed(key(0, path)))
    assert torch.equal(first["layers.1.ffn.placement.before.alpha"], wanted)
    assert len({float(t[0]) for name, t in first.items() if name.endswith("alpha")}) == 7


def test_a_part_that_owns_its_init_is_left_alone(stranger: Callable[..., Any]) -> None:
    drawn = build_stack(stranger("norm", Drawn)).state_dict()
    owned = build_stack(stranger("norm", Owner)).state_dict()
    changed = [path for path in drawn if not torch.equal(drawn[path], owned[path])]
    assert sorted(changed) == sorted(path for path in drawn if ".map." in path)


class Depth(NoNorm):
    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        self.depth = site.depth


def test_a_site_counts_the_sublayers_before_it(stranger: Callable[..., Any]) -> None:
    words = ["model.sublayers=[ffn,attention+ffn,ffn]", "model.layers=[{at:1,ffn:none}]"]
    stack = build_stack(stranger("norm", Depth, *words))
    found = {path: m.depth for path, m in stack.named_modules() if isinstance(m, Depth)}
    slots = ["0.ffn", "0.attention_ffn", "0.ffn_2"]
    slots += ["1.attention_ffn", "2.ffn", "2.attention_ffn"]
    inner = {f"layers.{slot}.placement.before": n for n, slot in enumerate([*slots, "2.ffn_2"])}
    assert found == {"final": 0} | inner


def test_a_pair_that_lost_one_stands_beside_a_sublayer_of_the_other() -> None:
    words = ["model.sublayers=[attention+ffn,ffn]", "model.layers=[{at:0,attention:none}]"]
    stack = build("model.n_layers=2", *words)
    slots = [list(layer.named_children()) for layer in stack.layers]
    assert [[name for name, _ in layer] for layer in slots] == [["attention_ffn", "ffn"]] * 2
    placed = [path for path in stack.slots if path.endswith(".branch") and "layers.0" in path]
    assert placed == ["layers.0.attention_ffn.branch", "layers.0.ffn.branch"]


REPLACED = {
    "position=rope position.theta=3 model.layers=[{at:':',position:{layout:interleaved}}]": "",
    "position=t5 position.buckets=8 model.layers=[{at:':',position:{shared:false}}]": "",
    "position=t5 model.layers=[{at:':',position:rope}]": "position: has no effect: t5 stands in "
    "no layer, others do by model.layers. Leave it out.",
    "placement=post model.layers=[{at:':',norm:rmsnorm}]": "",
    "norm=dyt placement=post model.layers=[{at:':',norm:rmsnorm}]": "norm: has no effect: dyt "
    "stands in no layer, others do by model.layers. Leave it out.",
}


@pytest.mark.parametrize("words", REPLACED)
def test_rules_may_replace_a_default_or_all_but_some_options_everywhere(words: str) -> None:
    if REPLACED[words]:
        with pytest.raises(ConfigError) as caught:
            build("model.n_layers=2", *words.split())
        assert str(caught.value) == REPLACED[words]
        return
    stack = build("model.n_layers=2", *words.split())
    read = {branch.position for branch in stack.modules() if isinstance(branch, Attention)}
    assert set(stack.position) == read
    assert all(path.removeprefix("position.") in read for path in stack.slots if "position" in path)


MOVED = {
    "model.layers=[{at:0,attention:{n_kv_heads:3}}]": "model.layers[0].attention.n_kv_heads=3: "
    "must divide model.n_heads=4. Try model.layers[0].attention.n_kv_heads=2.",
    "model.layers=[{at:0,ffn:{part:moe,top_k:9}}]": "model.layers[0].ffn.top_k=9: must be at most "
    "model.layers[0].ffn.experts=8. Try model.layers[0].ffn.top_k=8.",
    "model.layers=[{at:0,attention:{window:3}}] attention.n_kv_heads=3": "attention.n_kv_heads=3: "
    "must divide model.n_heads=4. Try attention.n_kv_heads=2.",
}


@pytest.mark.parametrize("words", MOVED)
def test_a_fault_of_a_rules_part_names_the_rule(words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build("model.n_heads=4", "model.n_layers=2", *words.split())
    assert str(caught.value) == MOVED[words]


class KeepsSite(NoNorm):
    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        self.site = site


class KeepsMethod(NoNorm):
    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        self.make = site.norm


class KeepsClosure(NoNorm):
    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        self.make = lambda: site.d_model


class KeepsPartial(NoNorm):
    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        self.held = {"make": [functools.partial(print, site)]}


class KeepsHook(NoNorm):
    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        self.register_forward_hook(lambda module, inputs, out: out if site.layer else None)


class ForgetsSite(NoNorm):
    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        try:
            raise KeyError(site.layer)
        except KeyError as error:
            ring: list[Any] = [error]  # whose traceback holds this frame, and that the site
            ring.append(ring)


@pytest.mark.parametrize("cls", [KeepsSite, KeepsMethod, KeepsClosure, KeepsPartial, KeepsHook])
def test_a_part_that_keeps_its_site_is_refused(cls: type, stranger: Callable[..., Any]) -> None:
    with pytest.raises(PluginError, match=r"norm=mine \(strange-parts 1.2\) keeps its site"):
        build_stack(stranger("norm", cls))


def test_a_part_that_forgets_its_site_late_is_taken(stranger: Callable[..., Any]) -> None:
    assert isinstance(build_stack(stranger("norm", ForgetsSite)).final, ForgetsSite)


class Breaks(Position):
    def __init__(self, opts: object, site: Site) -> None:
        raise KeyError("width")


class BreaksInit(Init):
    def __init__(self, opts: object) -> None:
        raise ValueError("no")


@pytest.mark.parametrize(
    "kind,cls,words",
    [
        ("position", Breaks, "cannot be built: KeyError: 'width'"),
        ("init", BreaksInit, "cannot be built: ValueError: no"),
        ("ffn", NoNorm, "must be a class derived from encoderkit.nn.FFN"),
        ("attention", "text", "must be a class derived from encoderkit.nn.Mixer"),
    ],
)
def test_a_broken_part_is_named_with_its_owner(
    kind: str, cls: object, words: str, stranger: Callable[..., Any]
) -> None:
    with pytest.raises(PluginError) as error:
        build_stack(stranger(kind, cls))
    assert str(error.value).startswith(f"{kind}=mine (strange-parts 1.2)")
    assert words in str(error.value)


@pytest.mark.parametrize(
    "text", ["train.lr=3", "train=smoke", "task=sort", "sweep.seeds=3", "seeds=3", "run.threads=2"]
)
def test_words_without_effect_on_a_stack_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build("norm=rmsnorm", text)
    assert [fault.where for fault in caught.value.faults] == [text]


RULED = (
    "model.layers=[{at:'::2',attention:naive,position:{part:rope,theta:500}},"
    "{at:1,position:rope,norm:none}]"
)


def test_rules_reach_the_parts() -> None:
    stack = build(RULED, "position=none", "model.n_layers=3")
    kinds = [type(layer["attention"].branch).__name__ for layer in stack.layers]  # type: ignore[index, union-attr]
    assert kinds == ["Naive", "SDPA", "Naive"]
    assert list(stack.position) == ["none", "rope", "rope_2"]
    named = [layer["attention"].branch.position for layer in stack.layers]  # type: ignore[index, union-attr]
    assert named == ["rope", "rope_2", "rope"]
    assert [stack.position[name].theta for name in named] == [500, 10000, 500]
    norms = [sum(p.numel() for p in layer["ffn"].placement.parameters()) for layer in stack.layers]  # type: ignore[index, union-attr]
    assert norms == [128, 0, 128]
    assert set(stack.traits) >= {"attention=naive", "attention=sdpa", "norm=none", "norm=layernorm"}
    x = torch.rand(2, 5, 64)
    assert stack(x).shape == x.shape


def test_layers_without_a_rule_keep_their_weights() -> None:
    plain, ruled = build("position=none"), build(RULED, "position=none")
    one, two = plain.state_dict(), ruled.state_dict()
    assert all(torch.equal(one[name], value) for name, value in two.items())
    assert set(one) - set(two) == {
        f"layers.1.{slot}.placement.before.{name}"
        for slot in ("attention", "ffn")
        for name in ("weight", "bias")
    }


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (
            ["attention=none", "position=rope"],
            "position=rope: no part asks for it: there is no attention that reads it. "
            "Try position=none.",
        ),
        (
            ["attention=none", "ffn=none", "position=none", "model.final_norm=false"],
            "norm=layernorm: no part asks for a norm with placement=pre. Try norm=none.",
        ),
        (
            ["model.layers=[{at:0,position:learned}]"],
            "model.layers: position=learned: adds to x before the first layer, so it cannot be "
            "for some layers only. Choose it as position=.",
        ),
    ],
)
def test_what_no_part_asks_for_is_refused(request_: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(*request_)
    assert str(error.value) == expected


def test_the_last_placement_decides_on_the_final_norm() -> None:
    last = "model.layers=[{at:-1,placement:pre}]"
    assert isinstance(build("placement=post").final, NoNorm)
    assert not isinstance(build("placement=post", last).final, NoNorm)


class Gained(Placement):
    """A placement with a gain for its branches."""

    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        self.norm = site.norm()
        self.branch_gain = 0.25

    def forward(self, x: Tensor, f: Branch, ctx: Ctx) -> Tensor:
        return x + f(self.norm(x, ctx), ctx)


def test_a_branch_gain_spares_what_only_selects(stranger: Callable[..., Any]) -> None:
    gained = build_stack(stranger("placement", Gained)).state_dict()
    plain = build_stack(configure()).state_dict()
    for name, value in gained.items():
        if ".branch." in name and name.endswith("weight"):
            factor = 1 if name.endswith((".q.weight", ".k.weight")) else 0.25
            assert torch.equal(value, plain[name] * factor), name
