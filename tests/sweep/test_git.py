from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from encoderkit.sweep import git


def run(*words: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *name, *words], check=True, capture_output=True)


def test_the_state_is_commit_and_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git.state() is None
    run("init", "-q")
    assert git.state() is None  # no commit yet
    run("commit", "-q", "--allow-empty", "-m", "first")
    found = git.state()
    assert found is not None and len(found["commit"]) == 40 and found["dirty"] is False
    (tmp_path / "new").touch()
    assert git.state() == {"commit": found["commit"], "dirty": True}


def test_no_git_is_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert git.state() is None
