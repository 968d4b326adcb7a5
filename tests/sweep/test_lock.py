from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from encoderkit.sweep import lock

HOLDER = """
import sys, time
from pathlib import Path
from encoderkit.sweep import lock
with lock.hold(Path(sys.argv[1]), 0) as mine:
    print(mine, flush=True)
    time.sleep(60)
"""


def holder(place: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(place)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "True\n"
    return process


def test_one_at_a_time(tmp_path: Path) -> None:
    with lock.hold(tmp_path, 0) as mine:
        assert mine and not lock.is_free(tmp_path)
        with lock.hold(tmp_path, 0) as again:
            assert not again
        assert (tmp_path / lock.FILE).read_text() == f"{os.getpid()}\n"
    assert lock.is_free(tmp_path)
    with lock.hold(tmp_path, 0) as mine:
        assert mine


def test_what_a_holder_forks_holds_nothing(tmp_path: Path) -> None:
    with lock.hold(tmp_path, 0):
        pid = os.fork()
        if pid == 0:
            time.sleep(20)
            os._exit(0)
    try:
        end = time.monotonic() + 10
        while not lock.is_free(tmp_path):  # until the fork has come to itself
            assert time.monotonic() < end
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_who_attends_is_seen_and_in_nobodys_way(tmp_path: Path) -> None:
    assert not lock.attended(tmp_path) and not lock.attended(tmp_path / "none")
    with lock.attend(tmp_path), lock.attend(tmp_path), lock.attend(tmp_path / "none"):
        assert lock.attended(tmp_path)
        with lock.attend(tmp_path):
            assert lock.attended(tmp_path)
    assert not lock.attended(tmp_path)


def test_a_lock_file_that_was_removed_or_replaced_is_still_held(tmp_path: Path) -> None:
    with lock.hold(tmp_path, 0):
        (tmp_path / lock.FILE).unlink()
        assert not lock.is_free(tmp_path)
        with lock.hold(tmp_path, 0) as again:
            assert not again
    assert lock.is_free(tmp_path)


def test_who_looks_is_in_nobodys_way_for_long(tmp_path: Path) -> None:
    (tmp_path / lock.FILE).touch()
    with open(tmp_path / lock.FILE) as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert lock.is_free(tmp_path)
        with lock.hold(tmp_path, 0) as mine:
            assert not mine


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOLCK])
def test_where_a_directory_takes_no_lock_the_file_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = fcntl.flock

    def flock(handle: int, kind: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        real(handle, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    if number == errno.ENOLCK:
        with pytest.raises(OSError), lock.hold(tmp_path, 0):
            pass
        return
    with lock.hold(tmp_path, 0) as mine:
        assert mine and not lock.is_free(tmp_path)
        with lock.hold(tmp_path, 0) as again:
            assert not again


def test_a_directory_that_was_never_locked_is_free(tmp_path: Path) -> None:
    assert lock.is_free(tmp_path)
    assert not (tmp_path / lock.FILE).exists()


def test_a_killed_holder_lets_go_at_once(tmp_path: Path) -> None:
    process = holder(tmp_path)
    assert not lock.is_free(tmp_path)
    begun = time.monotonic()
    with lock.hold(tmp_path, 0.2) as mine:
        assert not mine
    assert time.monotonic() - begun >= 0.2
    process.kill()
    with lock.hold(tmp_path, 5) as mine:
        assert mine
    with process:
        pass
