from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from encoderkit.config.request import configure
from encoderkit.train import trial as module
from encoderkit.train.trial import trial

SMALL = ["train=smoke", "model.d_model=16", "run.device=cpu"]


def test_a_trial_takes_the_median_of_the_steps_behind_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = iter([100.0, 4.0, 1.0, 2.0, 50.0])  # sorted without the first: 1, 2, 4, 50
    stamps = itertools.chain.from_iterable((0.0, spent) for spent in seconds)
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(stamps))
    assert trial(configure(*SMALL))[0] == 4.0
    assert list(stamps) == []


def test_what_the_forward_pass_keeps_grows_with_what_it_runs_on() -> None:
    one = [*SMALL, "model.n_layers=1"]
    kept = {batch: trial(configure(*one, f"train.batch={batch}"))[1] for batch in (4, 8)}
    assert 1.8 * kept[4] < kept[8] < 2.2 * kept[4]
    wide = trial(configure(*one, "train.batch=8", "model.d_ff=65"))[1]
    assert wide - kept[8] < 8 * 40 * 4 * 4  # a channel for each token, and no weights
    deep = trial(configure(*SMALL, "train.batch=8", "model.n_layers=2"))[1]
    assert deep > 1.4 * kept[8]
    # The tokens' embeddings alone, in float32: a batch of sort has at least 8 x 24 tokens.
    assert kept[8] > 8 * 24 * 16 * 4


def test_a_trial_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    trial(configure(*SMALL, "ffn.dropout=0.1", "run.threads=2"))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert list(tmp_path.iterdir()) == []


def test_a_trial_accumulates_nothing_and_takes_any_task() -> None:
    a_step, kept = trial(configure(*SMALL, "task=mlm_pydoc", "norm=batchnorm", "train.batch=2"))
    assert a_step > 0 and kept > 0
