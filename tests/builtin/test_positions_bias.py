"""Positions that add to the scores: alibi and t5, alone and in a stack."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import encoderkit
from encoderkit.errors import ConfigError
from encoderkit.nn import EncoderStack, Out
from encoderkit.testing import make_ctx, make_site
from encoderkit_builtin.catalogue_positions import T5Options
from encoderkit_builtin.positions import T5, ALiBi, edges, slopes

LENGTHS = [3, 0, 5, 5]
BOTH = pytest.mark.parametrize(
    "words", [("position=alibi",), ("position=t5",), ("position=t5", "position.shared=false")]
)


def build(*words: str, **more: Any) -> EncoderStack:
    sizes = ["model.d_model=24", "model.n_heads=3", "model.n_layers=2"]
    stack = encoderkit.build(*sizes, *words, dtype=torch.float64, **more)
    draws = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, p in stack.named_parameters():
            if name.endswith("table.weight"):
                p.copy_(torch.randn(p.shape, generator=draws))
    return stack


def test_slopes_are_the_published_ones() -> None:
    assert slopes(1) == [2**-8]
    assert slopes(2) == [2**-4, 2**-8]
    assert slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert slopes(3) == [1 / 16, 1 / 256, 1 / 4]
    assert slopes(6) == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]
    between = [0.7071067811865476, 0.35355339059327373, 0.17677669529663687, 0.08838834764831845]
    assert slopes(12) == pytest.approx(slopes(8) + between, rel=1e-15)


@pytest.mark.parametrize("heads", range(1, 70))
def test_slopes_follow_the_recipe(heads: int) -> None:
    """A geometric series down to 2^-8; what is missing comes from that of twice as many."""

    def series(count: int) -> list[float]:
        ratio = 2 ** (-(2 ** -(math.log2(count) - 3)))
        return [ratio ** (n + 1) for n in range(count)]

    power = 2 ** math.floor(math.log2(heads))
    wanted = series(power) + series(2 * power)[::2][: heads - power]
    assert slopes(heads) == pytest.approx(wanted, rel=1e-12) and len(slopes(heads)) == heads


@pytest.mark.parametrize("heads", [2, 3, 4])
def test_alibi_is_its_equation(heads: int) -> None:
    alibi = ALiBi(None, make_site(d_model=12 * heads, n_heads=heads))
    tables = alibi.prepare(make_ctx(LENGTHS))
    runs = tables.biases(0)
    assert [tuple(b.shape) for b in runs] == [(1, heads, n, n) for n in (3, 0, 5)]
    for bias in runs:
        assert bias.dtype == torch.float32
        for h, slope in enumerate(slopes(heads)):
            for i in range(bias.shape[2]):
                for j in range(bias.shape[3]):
                    assert float(bias[0, h, i, j]) == -slope * abs(i - j)
    assert tables.biases(1) is runs  # made once


def test_a_bias_reads_the_positions_of_each_sequence() -> None:
    ctx = make_ctx([3, 3])
    ctx.positions, ctx.counted = torch.tensor([5, 0, 9, 0, 400, 1]), False
    (bias,) = ALiBi(None, make_site(n_heads=2)).prepare(ctx).biases(0)
    assert bias.shape == (2, 2, 3, 3)
    assert bias[0, 0, 0].tolist() == [0, -5 / 16, -4 / 16]
    assert bias[1, 1, 2].tolist() == [-1 / 256, -399 / 256, 0]
    t5 = T5(T5Options(), make_site(n_heads=2))
    (bias,) = t5.prepare(ctx).biases(0)
    assert bias[0, :, 0].T.tolist() == t5.table.weight[[0, 5, 20]].tolist()
    assert bias[1, :, 2].T.tolist() == t5.table.weight[[1, 31, 0]].tolist()


# j - i and its bucket of 32 with max_distance=128: borders at 12, 16, 23, 32, 46, 64, 91.
PINNED = {0: 0, -1: 1, -7: 7, -8: 8, -11: 8, -12: 9, -15: 9, -16: 10, -22: 10, -23: 11, -31: 11}
PINNED |= {-32: 12, -45: 12, -46: 13, -63: 13, -64: 14, -90: 14, -91: 15, -128: 15, -10000: 15}
PINNED |= {1: 17, 7: 23, 8: 24, 16: 26, 64: 30, 127: 31, 10000: 31}


def looked_up(offset: int, buckets: int = 32, max_distance: int = 128) -> int:
    """Return the bucket of j - i = offset that the part reads."""
    options = T5Options(buckets=buckets, max_distance=max_distance)
    t5 = T5(options, make_site(n_heads=1))
    with torch.no_grad():
        t5.table.weight.copy_(torch.arange(buckets)[:, None])
    ctx = make_ctx([2])
    ctx.positions, ctx.counted = torch.tensor([max(0, -offset), max(0, offset)]), False
    (bias,) = t5.prepare(ctx).biases(0)
    return int(bias[0, 0, 0, 1])


def test_buckets_are_the_published_ones() -> None:
    assert {offset: looked_up(offset) for offset in PINNED} == PINNED


@pytest.mark.parametrize("buckets,most", [(32, 128), (32, 300), (20, 50), (4, 2), (8, 1000)])
def test_buckets_follow_the_logarithm(buckets: int, most: int) -> None:
    side, found = buckets // 2, edges(buckets // 2, most)
    exact = side // 2
    assert len(found) == side - 1 and found == sorted(found) and found[-1] <= most
    for distance in range(2 * most):
        bucket = sum(edge <= distance for edge in found)
        if distance < exact:
            assert bucket == distance
            continue
        grown = math.log(distance / exact) / math.log(most / exact) * (side - exact)
        if abs(grown - round(grown)) > 1e-9:  # on a border, whole numbers decide
            assert bucket == min(side - 1, exact + math.floor(grown))


def test_t5_says_what_its_options_may_be() -> None:
    for words, where, problem, hint in [
        (["position.buckets=33"], "position.buckets=33", "must be even", "Try position.buckets=34"),
        (
            ["position.max_distance=8"],
            "position.max_distance=8",
            "must be above 8: up to there each distance has its own bucket",
            "Try position.max_distance=64",
        ),
    ]:
        with pytest.raises(ConfigError) as error:
            encoderkit.build("position=t5", *words)
        (fault,) = error.value.faults
        assert fault.where == where and problem in fault.problem and hint in fault.hint
    encoderkit.build("position=t5", "position.max_distance=9")


def test_a_table_has_draws_of_its_own() -> None:
    def table(*words: str) -> Tensor:
        stack = encoderkit.build("position=t5", *words)
        return stack.state_dict()["position.t5.table.weight"]

    one = table("model.d_model=256", "position.buckets=512", "position.max_distance=999")
    assert one.shape == (512, 4) and abs(float(one.std()) * 16 - 1) < 0.05
    assert torch.equal(table("init=xavier"), table("init=bert"))
    assert not torch.equal(table("seed_init=1"), table("seed_init=2"))
    three, two = (table("position.shared=false", f"model.n_layers={n}") for n in (3, 2))
    assert three.shape == (96, 4) and torch.equal(three[:64], two)
    assert not torch.equal(three[:32], three[32:64])


def test_layers_share_a_table_or_have_one_each() -> None:
    site = make_site(n_layers=2)
    shared, own = (T5(T5Options(shared=s), site).prepare(make_ctx([4])) for s in (True, False))
    assert shared.biases(0) is shared.biases(1)
    first, second = own.biases(0), own.biases(1)
    assert not torch.equal(first[0], second[0])


def scattered() -> tuple[Tensor, Tensor]:
    """Return a padded batch with holes, padding on the left, and an empty row."""
    draws = torch.Generator().manual_seed(3)
    valid = torch.rand(4, 30, generator=draws) < 0.6
    valid[1] = False
    valid[2, :10] = False
    return torch.randn(4, 30, 24, generator=draws, dtype=torch.float64), valid


@BOTH
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
def test_packed_dense_and_alone_agree(words: tuple[str, ...], attention: str) -> None:
    stack, (x, valid) = build(*words, f"attention={attention}").eval(), scattered()
    draws = torch.Generator().manual_seed(5)
    for positions in (None, torch.randint(0, 500, (4, 30), generator=draws)):
        y = stack(x, valid, positions=positions)
        dense = stack.use_layout("dense")(x, valid, positions=positions)
        assert torch.allclose(dense, y, rtol=0, atol=1e-12)
        stack.use_layout("packed")
        for row in range(4):
            own = valid[row]
            at = None if positions is None else positions[row][own]
            if own.any():
                alone = stack(x[row][own], lengths=[int(own.sum())], positions=at)
                assert torch.allclose(alone, y[row][own], rtol=0, atol=1e-12)


@BOTH
def test_a_kernel_and_the_equation_have_one_gradient(words: tuple[str, ...]) -> None:
    found, (x, valid) = [], scattered()
    for attention in ("naive", "sdpa"):
        stack = build(*words, f"attention={attention}")
        loss = stack(x, valid).square().sum()
        found.append((loss, *torch.autograd.grad(loss, list(stack.parameters()))))
    for one, two in zip(*found, strict=True):
        assert torch.allclose(one, two, rtol=1e-10, atol=1e-12)
        assert bool(one.abs().max() > 1e-9)


@BOTH
def test_weights_are_those_of_plain_loops(words: tuple[str, ...]) -> None:
    """The weights that naive records, with and without the position, differ by its bias alone."""
    x, recorded = scattered()[0][:1, :20], []
    for chosen in (words, ("position=none",)):
        out, stack = Out(), build("attention=naive", *chosen)
        stack(x, out=out)
        recorded.append((out.records["layers.0.attention"][0], stack))
    (ours, stack), (plain, _) = recorded
    part = stack.position[words[0].partition("=")[2]]
    for h in range(3):
        for i in range(20):
            row = []
            for j in range(20):
                if isinstance(part, T5):
                    bias = part.table.weight[PINNED_ALL[j - i], h].item()
                else:
                    bias = -[0.0625, 0.00390625, 0.25][h] * abs(i - j)
                row.append(plain[h, i, j].item() * math.exp(bias))
            wanted = torch.tensor(row, dtype=torch.float64) / sum(row)
            assert torch.allclose(ours[h, i], wanted, rtol=0, atol=1e-12)


PINNED_ALL = {0: 0} | {
    sign * d: d * (d < 8) + (8 + (d > 11) + (d > 15)) * (d >= 8) + 16 * (sign > 0)
    for d in range(1, 20)
    for sign in (-1, 1)
}


@BOTH
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("layout", ["packed", "dense"])
def test_bfloat16_stays_near(words: tuple[str, ...], attention: str, layout: Any) -> None:
    """On weights and tokens that bfloat16 can hold, up to a distance of 4000."""
    stack = build(*words, f"attention={attention}", "model.final_norm=true").eval()
    stack.to(torch.bfloat16).double().use_layout(layout)
    x, valid = scattered()
    x = x.to(torch.bfloat16).double()
    positions = torch.arange(30).mul(137).expand(4, 30)
    exact = stack(x, valid, positions=positions)
    y = stack.to(torch.bfloat16)(x.to(torch.bfloat16), valid, positions=positions)
    assert y.dtype == torch.bfloat16
    assert torch.allclose(y.double(), exact, rtol=0, atol=0.1)


def test_a_count_on_the_meta_device_draws_nothing() -> None:
    stack = encoderkit.build("position=t5", device="meta")
    assert stack.state_dict()["position.t5.table.weight"].is_meta
