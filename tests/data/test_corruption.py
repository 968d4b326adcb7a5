from __future__ import annotations

import pytest
import torch

from encoderkit.data import corrupt

BLANK = 40


def test_a_row_hides_its_exact_share_and_only_there_does_it_change() -> None:
    tokens = torch.arange(40).repeat(6, 1)  # (6, 40)
    hidden, index = corrupt(tokens, 0.15, 40, BLANK, torch.Generator().manual_seed(0))
    assert torch.bincount(index // 40).tolist() == [6] * 6
    assert index.tolist() == sorted(set(index.tolist()))
    kept = torch.ones(240, dtype=torch.bool).index_fill(0, index, False)
    assert torch.equal(hidden.flatten()[kept], tokens.flatten()[kept])
    assert torch.equal(tokens, torch.arange(40).repeat(6, 1))


@pytest.mark.parametrize(("rate", "number"), [(0.001, 1), (0.5, 20), (1.0, 40)])
def test_at_least_one_token_and_at_most_all(rate: float, number: int) -> None:
    tokens = torch.zeros(3, 40, dtype=torch.int64)
    _, index = corrupt(tokens, rate, 40, BLANK, torch.Generator().manual_seed(0))
    assert len(index) == 3 * number


def test_of_the_hidden_tokens_80_10_10() -> None:
    tokens = torch.full((400, 100), 7)
    hidden, index = corrupt(tokens, 0.5, 1000, 1000, torch.Generator().manual_seed(0))
    new = hidden.flatten()[index]
    share = [float((new == value).double().mean()) for value in (1000, 7)]
    # 20,000 hidden tokens: two standard errors are below .006.
    assert share == pytest.approx([0.8, 0.1], abs=0.01)
    other = new[(new != 1000) & (new != 7)]
    assert other.min() >= 0 and other.max() < 1000 and len(other.unique()) > 600
