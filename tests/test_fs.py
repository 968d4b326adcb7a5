"""Atomic writes."""

from __future__ import annotations

import os

import pytest

from encoderkit import fs


def test_write_replaces_and_leaves_no_other_file(tmp_path):
    path = tmp_path / "record.json"
    fs.write_atomic(path, b"one")
    fs.write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["record.json"]


@pytest.mark.hazard("openhab/openhab-core#2989")
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_disk_keeps_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "record.json"
    fs.write_atomic(path, b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        fs.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["record.json"]


def test_what_a_killed_writer_left_is_cleared_and_no_other_file(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*_, **__):
        raise Killed

    path = tmp_path / "record.json"
    fs.write_atomic(path, b"old")
    (tmp_path / ".lock").touch()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "replace", kill)
        patch.setattr(type(path), "unlink", kill)
        fs.write_atomic(path, b"new")
    assert len(os.listdir(tmp_path)) == 3
    fs.clear_temporaries(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".lock", "record.json"]
    assert path.read_bytes() == b"old"
