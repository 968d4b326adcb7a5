from __future__ import annotations

import pytest
import torch

from encoderkit.config.schema import RunOptions
from encoderkit.errors import ConfigError
from encoderkit.train.device import environment, pick_device, settings


def test_auto_takes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert pick_device("auto").type == kind
        assert pick_device("cpu").type == "cpu"


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("cuda").type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="^run.device=cuda: torch .* Try run.device=auto.$"):
        pick_device("cuda")


def test_the_environment_names_what_bits_depend_on() -> None:
    found = environment(RunOptions(device="cpu", threads=3))
    assert found.keys() == {"torch", "device", "threads"}
    assert found["torch"] == torch.__version__ and found["threads"] == 3
    assert found["device"].startswith("cpu, ")


def test_settings_are_given_back_after_an_error() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), settings(threads + 1, torch.device("cpu")):
        assert torch.get_num_threads() == threads + 1
        torch.rand(3)
        raise ZeroDivisionError
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
