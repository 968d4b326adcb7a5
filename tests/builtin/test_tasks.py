from __future__ import annotations

import math
import platform
import sys
from itertools import pairwise

import pytest
import torch

from encoderkit.data import Batch, InputError, Task
from encoderkit_builtin.catalogue_tasks import MLMPydocOptions, SortOptions
from encoderkit_builtin.tasks import MLMPydoc, Sort, read_topics, split_text, windows


def equal(a: Batch, b: Batch) -> bool:
    tensors = [(a.tokens, b.tokens), (a.targets, b.targets)]
    tensors += [(a.index, b.index)] if a.index is not None and b.index is not None else []
    same = all(torch.equal(x, y) for x, y in tensors)
    return same and a.lengths == b.lengths and (a.index is None) == (b.index is None)


def sort(seed: int = 0, **options: int) -> Sort:
    return Sort(SortOptions(**options), seed)


def mlm(seed: int = 0) -> MLMPydoc:
    return MLMPydoc(MLMPydocOptions(), seed)


@pytest.fixture(params=[sort, mlm], ids=["sort", "mlm_pydoc"])
def make(request: pytest.FixtureRequest) -> type[Task]:
    return request.param  # type: ignore[no-any-return]


def test_a_batch_is_a_pure_function_of_seed_and_k(make: type[Task]) -> None:
    task, other = make(3), make(3)  # type: ignore[call-arg, arg-type]
    state = torch.get_rng_state()
    late = other.batch(7, 4)
    for k in range(8):
        batch = task.batch(k, 4)
    assert equal(batch, late)
    assert torch.equal(torch.get_rng_state(), state)
    assert not equal(batch, task.batch(6, 4))
    assert not equal(batch, make(4).batch(7, 4))  # type: ignore[call-arg, arg-type]


def test_the_evaluation_is_the_same_for_every_seed(make: type[Task]) -> None:
    one, two = make(0), make(1)  # type: ignore[call-arg, arg-type]
    one.batch(0, 4)
    pairs = list(zip(one.evaluation(), two.evaluation(), strict=True))
    assert pairs and all(equal(a, b) for a, b in pairs)
    assert one.data_hash == two.data_hash and len(one.data_hash) == 12
    assert one.trivial_loss == two.trivial_loss and one.baselines == two.baselines


def test_tokens_and_targets_fit_the_models_ends(make: type[Task]) -> None:
    task = make(0)  # type: ignore[call-arg, arg-type]
    for batch in [task.batch(0, 5), *task.evaluation()]:
        assert sum(batch.lengths) == len(batch.tokens)
        assert batch.tokens.min() >= 0 and batch.tokens.max() < task.vocab
        assert batch.targets.min() >= 0 and batch.targets.max() < task.outputs
        scored = len(batch.tokens) if batch.index is None else len(batch.index)
        assert len(batch.targets) == scored
    assert len(task.batch(0, 5).lengths) == 5


def test_sort_asks_for_the_sorted_row() -> None:
    batch = sort(length=5, symbols=3).batch(0, 4)
    assert batch.lengths == [5] * 4 and batch.index is None
    for row, target in zip(batch.tokens.view(4, 5), batch.targets.view(4, 5), strict=True):
        assert target.tolist() == sorted(row.tolist())


def test_sort_evaluates_the_number_of_sequences_asked_for() -> None:
    for number in (1, 64, 70):
        batches = list(sort(eval_sequences=number).evaluation())
        assert sum(len(batch.lengths) for batch in batches) == number


def test_sort_draws_other_sequences_to_train_than_to_evaluate() -> None:
    task = sort()
    (rows,) = {tuple(b.tokens.shape) for b in list(task.evaluation())[:1]}
    assert not torch.equal(task.batch(0, 64).tokens, next(iter(task.evaluation())).tokens)
    assert rows == (64 * 24,)


def test_sort_knows_its_baselines() -> None:
    task = sort(length=2, symbols=2)
    # (0,0) (0,1) (1,0) (1,1): the smaller is 0 three times in four, the larger once.
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert task.trivial_loss == pytest.approx(math.log(2))
    assert task.baselines == pytest.approx({"uniform": math.log(2), "position": entropy})
    assert 1.3 < sort().baselines["position"] < 1.4
    assert math.isfinite(sort(length=2000, eval_sequences=1).baselines["position"])


def test_sort_position_baseline_is_what_its_own_batches_show() -> None:
    task = sort(length=6, symbols=4)
    targets = task.batch(0, 20_000).targets.view(-1, 6)
    shares = torch.stack([(targets == v).double().mean(0) for v in range(4)])
    measured = -torch.special.xlogy(shares, shares).sum(0).mean()
    assert task.baselines["position"] == pytest.approx(float(measured), abs=0.01)


def test_sort_hashes_what_it_is() -> None:
    hashes = {sort().data_hash, sort(length=23).data_hash, sort(symbols=11).data_hash}
    assert len(hashes) == 3


def test_mlm_hides_bytes_and_asks_for_them() -> None:
    task = mlm()
    batch = task.batch(0, 6)
    assert batch.index is not None and len(batch.index) == 6 * 19
    text = batch.tokens.clone()
    text[batch.index] = batch.targets
    rows = {tuple(row) for row in task.rows.tolist()}
    assert all(tuple(row) in rows for row in text.view(6, 128).tolist())
    assert (batch.tokens[batch.index] == 256).double().mean() > 0.6


def test_mlm_visits_each_window_once_an_epoch() -> None:
    task = mlm()
    seen = []
    for k in range(-(-len(task.rows) // 64)):
        batch = task.batch(k, 64)
        assert batch.index is not None
        seen.append(batch.tokens.index_copy(0, batch.index, batch.targets).view(64, 128))
    epoch = torch.cat(seen)[: len(task.rows)]
    assert sorted(epoch.tolist()) == sorted(task.rows.tolist())


def test_mlm_trivial_loss_is_the_unigram_on_the_evaluations_targets() -> None:
    task = mlm()
    counts = [1 + int((task.rows == byte).sum()) for byte in range(256)]
    targets = torch.cat([batch.targets for batch in task.evaluation()]).tolist()
    loss = -sum(math.log(counts[byte] / sum(counts)) for byte in targets) / len(targets)
    assert task.trivial_loss == pytest.approx(loss) == pytest.approx(task.baselines["unigram"])
    assert 3.0 < task.trivial_loss < 3.5
    share = targets.count(ord(" ")) / len(targets)
    assert task.baselines["majority_accuracy"] == pytest.approx(share)


def test_mlm_keeps_the_held_out_text_out_of_training() -> None:
    text = read_topics()
    train, held_out = split_text(text)
    assert 0.08 < len(held_out) / len(text) < 0.11 and len(train) > 0.85 * len(text)

    def shared(length: int) -> float:
        known = {train[i : i + length] for i in range(len(train) - length)}
        starts = range(len(held_out) - length)
        return sum(held_out[i : i + length] in known for i in starts) / len(starts)

    assert shared(128) < 0.002 and shared(64) < 0.02


def test_split_text_drops_what_stands_in_both() -> None:
    quoted = "This line is longer than twenty-four characters."
    filler = ["filler " * 3 + str(i) for i in range(90)]
    paragraphs = [*filler, f"old\n   {quoted}", f"new\n{quoted}"]
    train, held_out = split_text("\n\n".join([*paragraphs, "end"]))
    assert quoted in held_out and quoted not in train
    assert "filler" in train and "filler" in held_out
    assert all(p in paragraphs for p in train.split("\n\n"))


@pytest.mark.skipif(sys.version_info[:3] != (3, 11, 7), reason="another Python, another text")
def test_mlm_hash_of_a_known_python() -> None:
    assert mlm().data_hash == "71f2ff5d99bd"


def test_mlm_data_hash_is_of_the_text() -> None:
    import hashlib

    assert mlm().data_hash == hashlib.sha256(read_topics().encode()).hexdigest()[:12]


def test_mlm_refuses_a_python_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(InputError) as caught:
        mlm()
    message = str(caught.value)
    assert message.startswith(f"task=mlm_pydoc: this Python ({platform.python_version()})")
    assert "task=sort" in message


def test_windows_are_the_bytes_in_order() -> None:
    assert windows("abcdefg", 3).tolist() == [[97, 98, 99], [100, 101, 102]]
    assert windows("é", 2).tolist() == [[0xC3, 0xA9]]
    with pytest.raises(InputError, match="^task.length=8: must be at most 7"):
        windows("abcdefg", 8)


def test_the_longest_window_that_the_options_allow_still_fits() -> None:
    task = MLMPydoc(MLMPydocOptions(length=4096), 0)
    assert all(len(batch.targets) for batch in task.evaluation())
    assert all(a == b for a, b in pairwise(task.batch(0, 3).lengths))
