from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from encoderkit.data import Batch, Task, content_hash


def ragged(lengths: list[int], *, scored: bool) -> Batch:
    n = sum(lengths)
    tokens = torch.arange(n)
    index = torch.arange(0, n, 3) if scored else None
    return Batch(tokens, lengths, index, tokens if index is None else tokens[index])


@given(st.lists(st.integers(0, 7), min_size=1, max_size=9), st.integers(1, 9), st.booleans())
@settings(deadline=None)
def test_split_keeps_every_sequence_and_every_target(
    lengths: list[int], parts: int, scored: bool
) -> None:
    batch = ragged(lengths, scored=scored)
    micro = batch.split(parts)
    assert [n for part in micro for n in part.lengths] == lengths
    assert torch.equal(torch.cat([part.tokens for part in micro]), batch.tokens)
    assert torch.equal(torch.cat([part.targets for part in micro]), batch.targets)
    for part in micro:
        assert sum(part.lengths) == len(part.tokens)
        here = part.tokens if part.index is None else part.tokens[part.index]
        assert torch.equal(here, part.targets)  # a target is its token's own value
    assert len(micro) == min(parts, len(lengths))
    sizes = [len(part.lengths) for part in micro]
    assert max(sizes) - min(sizes) <= 1


def test_to_moves_every_tensor() -> None:
    for scored in (True, False):
        moved = ragged([2, 5], scored=scored).to(torch.device("meta"))
        tensors = [moved.tokens, moved.targets] + ([moved.index] if scored else [])
        assert {tensor.device.type for tensor in tensors if tensor is not None} == {"meta"}
        assert moved.lengths == [2, 5] and (moved.index is None) is not scored


def test_draws_know_the_seed_in_training_only() -> None:
    def first(seed: int, split: str, k: int) -> float:
        return float(torch.rand((), generator=Task(None, seed).draws(split, k)))

    assert first(0, "train", 3) == first(0, "train", 3)
    assert len({first(seed, "train", k) for seed in (0, 1) for k in (0, 1)}) == 4
    assert first(0, "eval", 3) == first(1, "eval", 3) != first(0, "eval", 4)


def test_loss_is_a_sum_and_scores_count() -> None:
    task = Task(None, 0)
    logits = torch.tensor([[2.0, 0.0], [0.0, 0.0], [0.0, 3.0]])
    batch = Batch(torch.zeros(3).long(), [3], None, torch.tensor([0, 0, 0]))
    each = -torch.log_softmax(logits, 1)[:, 0]
    assert task.loss(logits, batch).item() == pytest.approx(each.sum().item())
    scores = task.scores(logits, batch)
    assert scores["loss"].item() == pytest.approx(each.sum().item())
    assert scores["accuracy"].item() == 2


def test_a_bare_task_has_no_batches() -> None:
    with pytest.raises(NotImplementedError):
        Task(None, 0).batch(0, 1)
    with pytest.raises(NotImplementedError):
        Task(None, 0).evaluation()


def test_content_hash_is_the_head_of_sha256() -> None:
    assert content_hash(b"ab", b"c") == content_hash(b"abc") == "ba7816bf8f01"
