from __future__ import annotations

from encoderkit.config.request import configure
from encoderkit.nn.build import build_stack
from encoderkit.nn.explain import explain


def test_the_rows_add_up_and_the_ffn_has_its_two_thirds() -> None:
    config = configure("norm=rmsnorm", "model.d_model=256", "model.n_layers=3", "model.n_heads=4")
    found = explain(config)
    assert [(row.slot, row.part) for row in found.rows] == [
        ("position", "sinusoidal"),
        ("attention", "sdpa"),
        ("attention", "pre with rmsnorm"),
        ("ffn", "mlp"),
        ("ffn", "pre with rmsnorm"),
        ("final", "rmsnorm"),
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
    found = explain(configure("attention=none", "ffn=none", "norm=none", "model.final_norm=false"))
    assert found.parameters == 0 and [row.share for row in found.rows] == [0.0]
