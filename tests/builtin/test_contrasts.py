"""Layer against batch normalisation: which axis, and what a token's result depends on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from encoderkit.errors import InputError
from encoderkit.nn import Norm
from encoderkit.testing import make_ctx, make_site
from encoderkit_builtin.catalogue import BatchNormOptions, LayerNormOptions
from encoderkit_builtin.norms import BatchNorm, LayerNorm

WIDTH = 6


def layer_norm() -> Norm:
    return LayerNorm(LayerNormOptions(), make_site(d_model=WIDTH)).double()


def batch_norm() -> Norm:
    return BatchNorm(BatchNormOptions(), make_site(d_model=WIDTH)).double()


def tokens(*lengths: int) -> list[Tensor]:
    """Return sequences whose channels differ in mean and spread, the same for the same place."""
    draws = torch.Generator().manual_seed(0)
    spread = torch.arange(1, WIDTH + 1).double()
    return [torch.randn(t, WIDTH, generator=draws).double() * spread + spread for t in lengths]


def of_first(norm: Norm, sequences: list[Tensor]) -> Tensor:
    """Return what a norm in training makes of the first sequence of a batch."""
    y = norm.train()(torch.cat(sequences), make_ctx([len(s) for s in sequences]))
    return y[: len(sequences[0])].detach()


def test_the_axis() -> None:
    sequences = tokens(40, 60)
    x, ctx = torch.cat(sequences), make_ctx([40, 60])
    by_token, by_channel = layer_norm()(x, ctx), batch_norm().train()(x, ctx)
    for y, axis in ((by_token, 1), (by_channel, 0)):
        torch.testing.assert_close(y.mean(axis), torch.zeros_like(y.mean(axis)), atol=1e-6, rtol=0)
        spread = y.var(axis, correction=0)
        torch.testing.assert_close(spread, torch.ones_like(spread), atol=1e-4, rtol=0)
    assert by_token.mean(0).abs().max() > 0.1 and by_channel.mean(1).abs().max() > 0.1


def test_the_mates_of_a_batch() -> None:
    first, second, third = tokens(5, 5, 5)
    alone, coupled = layer_norm(), batch_norm()
    assert torch.equal(of_first(alone, [first, second]), of_first(alone, [first, third]))
    apart = of_first(coupled, [first, second]) - of_first(coupled, [first, third])
    assert apart.abs().max() > 0.1


def test_the_size_of_a_batch() -> None:
    many = tokens(*[3] * 64)
    alone, coupled = layer_norm(), batch_norm()
    assert torch.equal(of_first(alone, many[:1]), of_first(alone, many))
    # Against the statistics of all, those of a few are off, and less so the more there are.
    whole = of_first(coupled, many)
    off = [float((of_first(coupled, many[:n]) - whole).abs().max()) for n in (2, 8, 32)]
    assert off[0] > off[1] > off[2] > 0
    with pytest.raises(InputError):  # a batch of one token has no variance at all
        of_first(coupled, tokens(1))


def test_the_length_of_a_sequence() -> None:
    (long,) = tokens(12)
    alone, coupled = layer_norm(), batch_norm()
    assert torch.equal(of_first(alone, [long])[:4], of_first(alone, [long[:4]]))
    apart = of_first(coupled, [long])[:4] - of_first(coupled, [long[:4]])
    assert apart.abs().max() > 0.1


def test_in_evaluation_batch_norm_depends_on_nothing_either() -> None:
    coupled = batch_norm()
    of_first(coupled, tokens(5, 5))
    coupled.eval()
    first, second = tokens(5, 5)
    both = coupled(torch.cat([first, second]), make_ctx([5, 5]))[:5]
    assert torch.equal(both, coupled(first, make_ctx([5])))
