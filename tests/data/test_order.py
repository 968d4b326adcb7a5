from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderkit.data import epoch_rows


@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 3))
@settings(deadline=None)
def test_every_epoch_visits_every_row_once(size: int, count: int, seed: int) -> None:
    batches = 3 * count // size + 1
    rows = torch.cat([epoch_rows(seed, k, size, count) for k in range(batches)])
    assert len(rows) == batches * size
    for epoch in rows.split(count)[: len(rows) // count]:
        assert sorted(epoch.tolist()) == list(range(count))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(epoch_rows(seed, k, 50, 50).tolist()) for seed in (0, 1) for k in (0, 1)}
    assert len(orders) == 4
    assert torch.equal(epoch_rows(0, 1, 50, 50), epoch_rows(0, 1, 50, 50))


def test_a_batch_may_be_larger_than_the_data() -> None:
    rows = epoch_rows(0, 1, 10, 4)
    assert rows.bincount().tolist() != [] and len(rows) == 10
    assert sorted(rows[2:6].tolist()) == [0, 1, 2, 3]
