from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

RUNNER = """
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from encoderkit.sweep.pool import Events, Pool, Work
    import child_works
    if __name__ == "__main__":
        here = Path(sys.argv[1])
        work = Work("work", getattr(child_works, sys.argv[2]), (here / "pid",), here / "log.txt")
        Pool(jobs=1).run([work], Events())
"""
WORKS = """
    import os, re, signal, subprocess
    from pathlib import Path
    def deaf(path, *, stop):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        print("output", flush=True)
        Path(path).write_text(str(os.getpid()))
        n = 0
        while True:  # busy, so that only another thread can see the runner's death
            n += 1
    def locked(path, *, stop):
        other = subprocess.Popen(["sleep", "600"])
        Path(path).write_text(f"{os.getpid()} {other.pid}")
        re.match(r"(a+)+$", "a" * 60 + "b")  # for ever, and no other thread gets to run
"""


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that is dead and not yet buried does not."""
    if Path("/proc/self/stat").exists():
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False
    look = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(look.stdout.strip()) and not look.stdout.startswith("Z")


def wait_for(path: Path) -> str:
    end = time.monotonic() + 30
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return path.read_text()


def kill_the_runner(tmp_path: Path, work: str) -> None:
    """Start a runner of one work, kill it, and see that all it started is gone in a second."""
    (tmp_path / "child_works.py").write_text(textwrap.dedent(WORKS))
    (tmp_path / "runner.py").write_text(textwrap.dedent(RUNNER))
    command = [sys.executable, str(tmp_path / "runner.py"), str(tmp_path), work]
    with subprocess.Popen(command) as runner:
        pids = [int(word) for word in wait_for(tmp_path / "pid").split()]
        assert all(map(alive, pids))
        runner.send_signal(signal.SIGKILL)
        killed = time.monotonic()
    while any(map(alive, pids)):
        assert time.monotonic() - killed < 1
        time.sleep(0.01)


def test_a_busy_child_ends_within_a_second_of_its_killed_runner(tmp_path: Path) -> None:
    kill_the_runner(tmp_path, "deaf")
    assert (tmp_path / "log.txt").read_text() == "output\n"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread must get to run")
def test_so_does_one_that_keeps_the_interpreter_and_what_it_started(tmp_path: Path) -> None:
    kill_the_runner(tmp_path, "locked")
