from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

RUNNER = """
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from encoderkit.sweep.pool import Events, Pool, Work
    import child_works
    if __name__ == "__main__":
        here = Path(sys.argv[1])
        work = Work("deaf", child_works.deaf, (here / "pid",), here / "log.txt")
        Pool(jobs=1).run([work], Events())
"""
WORKS = """
    import os, signal
    from pathlib import Path
    def deaf(path, *, stop):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        print("output", flush=True)
        Path(path).write_text(str(os.getpid()))
        n = 0
        while True:  # busy, so that only another thread can see the runner's death
            n += 1
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


def test_a_busy_child_ends_within_a_second_of_its_killed_runner(tmp_path: Path) -> None:
    (tmp_path / "child_works.py").write_text(textwrap.dedent(WORKS))
    (tmp_path / "runner.py").write_text(textwrap.dedent(RUNNER))
    command = [sys.executable, str(tmp_path / "runner.py"), str(tmp_path)]
    with subprocess.Popen(command) as runner:
        pid = int(wait_for(tmp_path / "pid"))
        assert alive(pid)
        runner.send_signal(signal.SIGKILL)
        killed = time.monotonic()
    while alive(pid):
        assert time.monotonic() - killed < 1
        time.sleep(0.01)
    assert (tmp_path / "log.txt").read_text() == "output\n"
