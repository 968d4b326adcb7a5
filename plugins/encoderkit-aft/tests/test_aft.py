from __future__ import annotations

import pytest
import torch

import encoderkit
from encoderkit.nn import ConfigError, EncoderStack

WIDE = torch.float64


def stack(*request: str) -> EncoderStack:
    """Return a stack without positions, its distances given weights."""
    made = encoderkit.build("attention=aft", "position=none", *request, dtype=WIDE)
    with torch.no_grad():
        for name, p in made.named_parameters():
            if name.endswith(".branch.w"):
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    return made


def tokens(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=WIDE, generator=torch.Generator().manual_seed(0))


def test_it_starts_blind_to_order_and_learns_it() -> None:
    x = tokens(1, 20, 64)
    at_first = encoderkit.build("attention=aft", "position=none", dtype=WIDE)
    torch.testing.assert_close(at_first(x.flip(1)), at_first(x).flip(1), rtol=0, atol=1e-12)
    assert (stack()(x.flip(1)) - stack()(x).flip(1)).abs().max() > 1e-3


def test_only_near_places_are_told_apart() -> None:
    x = tokens(1, 30, 64)
    swapped = x.clone()
    swapped[0, [20, 25]] = x[0, [25, 20]]
    built = stack("model.n_layers=1", "attention.reach=3")
    off = (built(x) - built(swapped)).abs().amax((0, 2))
    assert off[:17].max() < 1e-12  # 20 and 25 are both too far
    assert off[[17, 19, 21, 24, 26, 28]].min() > 1e-6


def test_a_sequence_may_be_longer_than_any_before() -> None:
    built, x = stack(), tokens(1, 300, 64)
    torch.testing.assert_close(built(x)[0], built(x[0], lengths=[300]), rtol=0, atol=1e-12)


def test_the_positions_of_the_caller_count() -> None:
    built, x = stack("attention.reach=2"), tokens(1, 4, 64)
    near, far = (built(x, positions=torch.arange(4)[None] * step) for step in (1, 10))
    assert (near - far).abs().max() > 1e-3
    beyond = built(x, positions=torch.tensor([[0, 50, 20, 70]]))
    torch.testing.assert_close(beyond, far, rtol=0, atol=1e-12)


def test_a_position_that_turns_queries_and_keys_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"attention=aft: cannot serve position=rope \(rotation\)"
    ):
        encoderkit.build("attention=aft", "position=rope")
