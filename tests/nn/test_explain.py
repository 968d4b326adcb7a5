from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from encoderkit.config.request import configure
from encoderkit.config.schema import Config
from encoderkit.nn import FFN, Ctx, Norm, Site
from encoderkit.nn.build import build_stack
from encoderkit.nn.explain import explain


def test_the_rows_add_up_and_the_ffn_has_its_two_thirds() -> None:
    config = configure("norm=rmsnorm", "model.d_model=256", "model.n_layers=3", "model.n_heads=4")
    found = explain(config)
    assert [(row.slot, row.role, row.part) for row in found.rows] == [
        ("position", "position", "sinusoidal"),
        ("attention", "branch", "sdpa"),
        ("attention", "placement", "pre with rmsnorm"),
        ("ffn", "branch", "mlp"),
        ("ffn", "placement", "pre with rmsnorm"),
        ("final", "final", "rmsnorm"),
    ]
    stack = build_stack(config)
    assert found.parameters == sum(p.numel() for p in stack.parameters())
    assert found.parameters == sum(row.parameters for row in found.rows)
    assert abs(sum(row.share for row in found.rows) - 1) < 1e-9
    assert abs(found.rows[3].share - 2 / 3) < 0.01
    assert found.rows[1].shape == "q, k, v, out (256, 256)"
    assert found.rows[1].parameters == 3 * 4 * 256 * 256
    assert found.equation[:4] == [
        "3 times:",
        "  x = x + attention(N(x))",
        "  x = x + ffn(N(x))",
        "then x = N(x)",
    ]
    assert found.equation[5].startswith(
        "ffn is mlp (act=gelu, width=null, bias=true, dropout=0.0):"
    )
    assert found.equation[6] == (
        "N is rmsnorm (eps=1e-6, offset=0.0): "
        "(offset + gain) * x / sqrt(mean(x^2) + eps) over the channels of a token"
    )


def test_flops_add_up_over_the_layers() -> None:
    found = explain(configure("model.sublayers=[attention,ffn,ffn]"), length=32)
    spent = {(row.slot, row.role): row.flops for row in found.rows if row.flops}
    attention, ffn = 3 * (8 * 64 * 64 + 4 * 32 * 64), 3 * 4 * 64 * 256
    assert spent == {
        ("attention", "branch"): attention,
        ("ffn", "branch"): ffn,
        ("ffn_2", "branch"): ffn,
    }
    assert (found.flops, found.length) == (attention + 2 * ffn, 32)
    assert sum(row.flops_share or 0 for row in found.rows) == pytest.approx(1)
    assert found.rows[3].flops_share == ffn / (attention + 2 * ffn)


class Mixing(Norm):
    """A norm with a product, which is counted where the norm stands."""

    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        self.map = nn.Linear(site.d_model, site.d_model, bias=False)

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        y: Tensor = self.map(x)
        return y


def test_the_norms_of_a_placement_are_in_its_row(stranger: Callable[..., Config]) -> None:
    rows = explain(stranger("norm", Mixing)).rows
    assert [(row.slot, row.flops) for row in rows if row.part.endswith("mine")] == [
        ("attention", 3 * 2 * 64 * 64),
        ("ffn", 3 * 2 * 64 * 64),
        ("final", 2 * 64 * 64),
    ]


class Uneven(FFN):
    """Has one parameter more in the middle layer, and asks for data in the last."""

    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(2 if site.layer == 1 else 1))
        self.last = site.layer == 2

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        return x * x.max().item() if self.last else x


def test_equal_parts_share_a_row_and_one_unknown_makes_it_unknown(
    stranger: Callable[..., Config],
) -> None:
    found = explain(stranger("ffn", Uneven))
    rows = [row for row in found.rows if row.part == "mine"]
    assert [(row.shape, row.parameters) for row in rows] == [("gain (1,)", 2), ("gain (2,)", 2)]
    assert [(row.flops, row.flops_share) for row in rows] == [(None, None), (0, None)]
    assert found.flops is None
    assert found.rows[1].flops == 3 * (8 * 64 * 64 + 4 * 128 * 64)


def test_repeated_slots_and_no_final_norm() -> None:
    config = configure("placement=post", "model.sublayers=[ffn,attention,ffn]", "ffn=swiglu")
    found = explain(config)
    assert [row.slot for row in found.rows] == ["position"] + [
        slot for slot in ("ffn", "attention", "ffn_2") for _ in range(2)
    ]
    assert found.rows[1].shape == "up, gate (168, 64); down (64, 168)"
    assert found.equation[1:4] == [
        f"  x = N(x + {slot}(x))" for slot in ("ffn", "attention", "ffn_2")
    ]
    assert "then x = N(x)" not in found.equation
    assert explain(configure("placement=residual2")).equation[1:4] == [
        "  x = N(x + attention(x)), s = s + that attention(x)",
        "  x = N(x + ffn(x)), s = s + that ffn(x)",
        "then x = x + N(s)",
    ]
    bare = explain(configure("attention=none", "ffn=none", "position=none"))
    assert bare.equation[1] == "then x = N(x)"


def test_a_stack_of_nothing() -> None:
    found = explain(configure("attention=none", "ffn=none", "norm=none"))
    assert found.parameters == 0 and [row.share for row in found.rows] == [0.0]
    assert found.flops == 0 and [row.flops_share for row in found.rows] == [0.0]


def test_what_is_left_of_a_pair_is_said() -> None:
    words = ["model.sublayers=[attention+ffn,ffn]", "model.layers=[{at:1,attention:none}]"]
    assert explain(configure("model.n_layers=2", *words)).equation[:8] == [
        "layer 0:",
        "  x = x + attention_ffn(N(x))",
        "  attention_ffn(x) = attention(x) + ffn(x)",
        "  x = x + ffn(N(x))",
        "layer 1:",
        "  x = x + attention_ffn(N(x))",
        "  attention_ffn(x) = ffn(x)",
        "  x = x + ffn(N(x))",
    ]


def test_layers_that_differ_are_told_apart() -> None:
    found = explain(
        configure(
            "model.layers=[{at:'::2',norm:{part:rmsnorm,eps:1e-5},ffn:swiglu}]",
            "model.sublayers=[attention+ffn,0.5*ffn]",
            "model.embed_norm=scalenorm",
            "norm=dyt",
        )
    )
    assert found.equation[:5] == [
        "first x = embed_norm(x)",
        "3 times:",
        "  x = x + attention_ffn(N(x))",
        "  attention_ffn(x) = attention(x) + ffn(x)",
        "  x = x + 0.5 ffn(N(x))",
    ]
    meanings = [line.partition(" is ") for line in found.equation if " is " in line]
    named = {name: text.partition(" ")[0].rstrip(":") for name, _, text in meanings}
    assert named == {
        "attention": "sdpa",
        "ffn in layers 0, 2": "glu",
        "ffn in layer 1": "mlp",
        "N in layers 0, 2": "rmsnorm",
        "N in layer 1": "dyt",
        "position": "sinusoidal",
        "embed_norm": "scalenorm",
    }
    parts = [(row.slot, row.part) for row in found.rows]
    assert ("embed_norm", "scalenorm") in parts
    assert ("attention_ffn", "glu") in parts and ("attention_ffn", "mlp") in parts
    assert found.parameters == sum(row.parameters for row in found.rows)
    spent = [row.flops for row in found.rows if row.flops is not None]
    assert found.flops is not None and abs(found.flops - sum(spent)) < 1e-6 * found.flops
