from __future__ import annotations

import pytest
import torch

from encoderkit.nn import Init
from encoderkit_builtin.inits import Small, Torch, Xavier


def draws(init: Init, shape: tuple[int, int] = (300, 100)) -> list[torch.Tensor]:
    """Return a weight, its bias and an embedding."""
    tensors = [torch.full(shape, 9.0), torch.full(shape[:1], 9.0), torch.full(shape, 9.0)]
    init.weight(tensors[0], torch.Generator().manual_seed(0))
    init.bias(tensors[1], shape[1], torch.Generator().manual_seed(1))
    init.embedding(tensors[2], torch.Generator().manual_seed(2))
    return tensors


def test_xavier() -> None:
    weight, bias, embedding = draws(Xavier(None))
    assert abs(float(weight.std()) / (2 / 400) ** 0.5 - 1) < 0.02
    assert float(weight.abs().max()) > 3.5 * (2 / 400) ** 0.5  # normal, not uniform
    assert bool((bias == 0).all())
    assert abs(float(embedding.std()) - 1) < 0.02 and abs(float(embedding.mean())) < 0.02


def test_small() -> None:
    weight, bias, embedding = draws(Small(None))
    assert abs(float(weight.std()) / (2 / 500) ** 0.5 - 1) < 0.02
    assert float(weight.abs().max()) > 3.5 * (2 / 500) ** 0.5  # normal, not uniform
    assert bool((bias == 0).all())
    assert abs(float(embedding.std()) - 1) < 0.02 and abs(float(embedding.mean())) < 0.02


def test_small_is_xavier_where_the_ffn_widens_four_times() -> None:
    shape = (400, 100)
    assert torch.equal(draws(Small(None), shape)[0], draws(Xavier(None), shape)[0])


def test_torch_is_what_torch_draws() -> None:
    weight, bias, embedding = draws(Torch(None))
    torch.manual_seed(0)
    theirs = torch.nn.Linear(100, 300)
    for ours, other in ((weight, theirs.weight), (bias, theirs.bias)):
        assert 0.98 < float(ours.abs().max()) / 0.1 <= 1
        assert abs(float(ours.std()) / float(other.detach().std()) - 1) < 0.15
        assert 0.98 < float(other.detach().abs().max()) / 0.1 <= 1
    assert abs(float(embedding.std()) - 1) < 0.02


@pytest.mark.parametrize("init", [Xavier(None), Torch(None), Small(None)])
def test_a_draw_comes_from_its_generator_alone(init: Init) -> None:
    before = torch.get_rng_state()
    pairs = zip(draws(init), draws(init), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(torch.get_rng_state(), before)
