"""FLOPs counted, against FLOPs by hand: 2 for each weight, and 4 T D for scores and mixing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from encoderkit.config.request import configure
from encoderkit.config.schema import Config
from encoderkit.errors import InputError
from encoderkit.nn import FFN, Ctx, Norm, Placement, Position, Site, Tables
from encoderkit.nn.base import Branch
from encoderkit.nn.build import build_stack
from encoderkit.nn.cost import flops

D, F, L, W = 64, 256, 3, 168


def cost(*request: str, length: int = 128) -> dict[str, float]:
    return flops(build_stack(configure(*request), device="meta"), length)


@pytest.mark.parametrize("backend", ["naive", "sdpa"])
@pytest.mark.parametrize("length", [1, 128, 1000])
def test_attention_has_its_projections_and_its_pairs(backend: str, length: int) -> None:
    found = cost(f"attention={backend}", length=length)
    branches = [found[f"layers.{n}.attention.branch"] for n in range(L)]
    assert branches == [8 * D * D + 4 * length * D] * L


def test_the_default_stack_by_hand() -> None:
    found = cost()
    assert sum(found.values()) == L * (8 * D * D + 4 * 128 * D + 4 * D * F) == 393_216
    assert {path for path, spent in found.items() if spent} == {
        f"layers.{n}.{slot}.branch" for n in range(L) for slot in ("attention", "ffn")
    }
    assert found[""] == found["final"] == found["position.sinusoidal"] == 0
    assert found["layers.0.ffn.placement"] == found["layers.0.ffn.placement.before"] == 0


def test_a_gate_costs_a_third_map() -> None:
    assert cost("ffn=swiglu")["layers.0.ffn.branch"] == 3 * 2 * D * W


class Mixing(Norm):
    """A norm with a product of its own."""

    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        self.map = nn.Linear(site.d_model, site.d_model)

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        y: Tensor = self.map(x)
        return y


def test_work_of_a_norm_is_its_own_and_not_that_of_the_branch(
    stranger: Callable[..., Config],
) -> None:
    found = flops(build_stack(stranger("norm", Mixing), device="meta"), 16)
    assert found["layers.1.ffn.placement.before"] == found["final"] == 2 * D * D
    assert found["layers.1.ffn.placement"] == 0
    assert found["layers.1.ffn.branch"] == 4 * D * F


class Weighing(Placement):
    """A placement with a product around the branch."""

    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        self.map = nn.Linear(site.d_model, site.d_model)

    def forward(self, x: Tensor, f: Branch, ctx: Ctx) -> Tensor:
        return x + self.map(f(self.map(x), ctx))


def test_a_placement_is_counted_without_its_branch(stranger: Callable[..., Config]) -> None:
    found = flops(build_stack(stranger("placement", Weighing, "norm=none"), device="meta"), 16)
    assert found["layers.2.ffn.placement"] == 4 * D * D
    assert found["layers.2.ffn.branch"] == 4 * D * F


class Turning(Position):
    """A position with a product in each of its two methods."""

    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        self.map = nn.Linear(site.d_model, site.d_model)

    def embed(self, x: Tensor, ctx: Ctx) -> Tensor:
        self.x = x
        y: Tensor = self.map(x)
        return y

    def prepare(self, ctx: Ctx) -> Tables:
        self.map(self.x)
        return Tables()


def test_both_methods_of_a_position_count(stranger: Callable[..., Config]) -> None:
    found = flops(build_stack(stranger("position", Turning), device="meta"), 16)
    assert found["position.mine"] == 4 * D * D and found[""] == 0


class Picking(FFN):
    """Looks at its numbers to decide what to compute."""

    def __init__(self, opts: object, site: Site) -> None:
        super().__init__()
        self.map = nn.Linear(site.d_model, site.d_model)

    def forward(self, x: Tensor, ctx: Ctx) -> Tensor:
        y: Tensor = self.map(x)
        return y.index_add(0, (x[:, 0] > 0).nonzero()[:, 0], y)


def test_a_part_that_needs_data_is_unknown_and_the_others_are_not(
    stranger: Callable[..., Config],
) -> None:
    found = flops(build_stack(stranger("ffn", Picking), device="meta"), 128)
    unknown = {path for path, spent in found.items() if math.isnan(spent)}
    assert unknown == {f"layers.{n}.ffn.branch" for n in range(L)}
    assert found["layers.2.attention.branch"] == 8 * D * D + 4 * 128 * D
    assert found["layers.2.ffn.placement"] == 0 and math.isnan(sum(found.values()))


def test_a_sequence_that_a_part_refuses_is_refused() -> None:
    with pytest.raises(InputError, match="position.max_len=600"):
        cost("position=learned", length=600)


def test_the_stack_is_as_it_was_but_in_eval() -> None:
    stack = build_stack(configure("ffn.dropout=0.5"), device="meta", dtype=torch.bfloat16)
    before = {path: dict(vars(part)) for path, part in stack.named_modules()}
    assert flops(stack, 8) == flops(stack, 8)
    assert sum(flops(stack, 8).values()) == L * (8 * D * D + 32 * D + 4 * D * F)
    for path, part in stack.named_modules():
        assert vars(part) == before[path] | {"training": False}
