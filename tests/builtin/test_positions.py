from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import encoderkit
from encoderkit.errors import ConfigError, InputError
from encoderkit.testing import make_ctx, make_site
from encoderkit_builtin.catalogue_positions import LearnedOptions, RoPEOptions, SinusoidalOptions
from encoderkit_builtin.positions import Learned, NoPosition, RoPE, Sinusoidal, Turn

LENGTHS = [3, 0, 5]
AT = [0, 1, 2, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("d", [8, 7, 1])
def test_sinusoidal_is_its_equation(d: int) -> None:
    x = torch.rand(8, d).double()
    wanted = torch.tensor(
        [
            [(math.cos if c % 2 else math.sin)(p / 10000 ** (2 * (c // 2) / d)) for c in range(d)]
            for p in AT
        ]
    )
    site = make_site(d_model=d, n_heads=1)
    added = Sinusoidal(SinusoidalOptions(), site).embed(x, make_ctx(LENGTHS)) - x
    assert torch.allclose(added, wanted.double(), rtol=0, atol=1e-6)
    halves = Sinusoidal(SinusoidalOptions(layout="half"), site).embed(x, make_ctx(LENGTHS)) - x
    order = [*range(0, d, 2), *range(1, d, 2)]
    assert torch.allclose(halves, wanted.double()[:, order], rtol=0, atol=1e-6)


def test_learned_adds_its_row() -> None:
    learned = Learned(LearnedOptions(max_len=5), make_site(d_model=8))
    x = torch.rand(8, 8)
    assert torch.equal(learned.embed(x, make_ctx(LENGTHS)), x + learned.table.weight[AT])


def test_learned_refuses_a_longer_sequence_and_positions_beyond() -> None:
    learned = Learned(LearnedOptions(max_len=4), make_site(d_model=8))
    with pytest.raises(InputError, match="5 positions, and there are 4. Try position.max_len=5"):
        learned.embed(torch.rand(8, 8), make_ctx(LENGTHS))
    stack = encoderkit.build("position=learned", "position.max_len=4")
    x, beyond = torch.rand(1, 3, 64), torch.tensor([[0, 1, 4]])
    assert stack(x).shape == x.shape
    for layout in ("packed", "dense"):
        with pytest.raises(InputError, match="has 5 positions"):
            stack.use_layout(layout)(x, positions=beyond)  # type: ignore[arg-type]


def rotated(theta: float, width: int = 6) -> tuple[Tensor, Tensor]:
    """Return random queries (8, 2, K) and what RoPE makes of them."""
    rope = RoPE(RoPEOptions(theta=theta), make_site(d_model=2 * width, n_heads=2))
    q = torch.randn(8, 2, width, generator=torch.Generator().manual_seed(0)).double()
    turned, same = rope.prepare(make_ctx(LENGTHS)).rotate(q, q)
    assert torch.equal(turned, same)
    return q, turned


@pytest.mark.parametrize("theta", [10000.0, 50.0])
def test_rope_turns_each_half_against_the_other(theta: float) -> None:
    q, turned = rotated(theta)
    for token, p in enumerate(AT):
        for i in range(3):
            pair = torch.complex(q[token, :, i], q[token, :, i + 3])
            angle = torch.tensor(p * theta ** (-2 * i / 6), dtype=torch.float64)
            wanted = pair * torch.polar(torch.ones_like(angle), angle)
            got = torch.complex(turned[token, :, i], turned[token, :, i + 3])
            assert torch.allclose(got, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("width", [None, 2, 4, 6])
def test_rope_pairs_as_its_options_say(layout: str, width: int | None) -> None:
    options = RoPEOptions(theta=50.0, layout=layout, width=width)
    rope, w = RoPE(options, make_site(d_model=12, n_heads=2)), width or 6
    q = torch.randn(8, 2, 6, generator=torch.Generator().manual_seed(0)).double()
    turned, same = rope.prepare(make_ctx(LENGTHS)).rotate(q, q)
    assert torch.equal(turned, same) and torch.equal(turned[:, :, w:], q[:, :, w:])
    for i in range(w // 2):
        a, b = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + w // 2)
        angle = torch.tensor(AT).double()[:, None] * 50.0 ** (-2 * i / w)
        wanted = torch.complex(q[:, :, a], q[:, :, b]) * torch.polar(
            torch.ones(8, 1).double(), angle
        )
        got = torch.complex(turned[:, :, a], turned[:, :, b])
        assert torch.allclose(got, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("width,ok", [(3, False), (8, False), (6, True), (2, True)])
def test_rope_refuses_a_width_that_is_odd_or_above_the_head(width: int, ok: bool) -> None:
    asked = ["position=rope", f"position.width={width}", "model.d_model=14", "model.n_heads=2"]
    if ok:
        encoderkit.build(*asked)
        return
    with pytest.raises(ConfigError) as error:
        encoderkit.build(*asked)
    (fault,) = error.value.faults
    assert fault.where == f"position.width={width}" and "14 / 2 is 7" in fault.problem
    assert "Try position.width=2, or null" in fault.hint


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rope_scores_depend_on_the_distance_alone(layout: str) -> None:
    rope = RoPE(RoPEOptions(layout=layout), make_site(d_model=12, n_heads=2))
    one = torch.randn(1, 2, 6).double().expand(9, 2, 6)
    q, k = rope.prepare(make_ctx([9])).rotate(one, one.flip(2))
    scores = torch.einsum("ihk,jhk->hij", q, k)
    for distance in range(-8, 9):
        line = scores.diagonal(distance, 1, 2)
        assert torch.allclose(line, line[:, :1].expand_as(line), rtol=0, atol=1e-5)
    assert not torch.allclose(scores[:, 0, 1], scores[:, 1, 0])


def test_rope_refuses_an_odd_head_width_at_build() -> None:
    with pytest.raises(ConfigError) as error:
        encoderkit.build("position=rope", "model.d_model=30", "model.n_heads=2")
    (fault,) = error.value.faults
    assert fault.where == "model.n_heads=2" and "30 / 2 is 15" in fault.problem
    assert "Try model.d_model=60" in fault.hint
    encoderkit.build("position=rope", "model.d_model=60", "model.n_heads=2")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tables_stay_float32_in_a_low_precision_model(dtype: torch.dtype) -> None:
    stack = encoderkit.build("position=rope", "model.n_layers=1").to(dtype)
    rope = stack.position["rope"]
    assert isinstance(rope, RoPE) and not list(rope.buffers())
    tables = rope.prepare(make_ctx([4096]))
    assert isinstance(tables, Turn) and tables.cos.dtype == tables.sin.dtype == torch.float32
    exact = (
        torch.arange(4096).double()[:, None] * 10000 ** (-torch.arange(0, 16, 2) / 16.0).double()
    )
    assert float((tables.cos[:, 0].double() - exact.cos()).abs().max()) < 1e-2
    q = torch.ones(4096, 4, 16, dtype=dtype)
    assert tables.rotate(q, q)[0].dtype == dtype


def score(position: str) -> Callable[[Tensor], Tensor]:
    stack = encoderkit.build(f"position={position}", "model.n_layers=1", dtype=torch.float64)
    return lambda x: stack(x)


@pytest.mark.parametrize("position", ["none", "sinusoidal", "learned", "rope", "alibi", "t5"])
def test_only_a_position_breaks_the_symmetry_of_order(position: str) -> None:
    run, x = score(position), torch.randn(1, 6, 64).double()
    order = torch.tensor([3, 1, 5, 0, 4, 2])
    alike = torch.allclose(run(x[:, order]), run(x)[:, order], rtol=0, atol=1e-10)
    assert alike is (position == "none")


def test_none_does_nothing() -> None:
    x = torch.rand(8, 8)
    assert NoPosition(None, make_site(d_model=8)).embed(x, make_ctx(LENGTHS)) is x
