"""What stands around a sweep fails: its streams, its terminal, its manager, its own directory."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import drill
import pytest

from encoderkit.sweep import record

TWO = ["norm=rmsnorm,layernorm", "jobs=2", "sweep.dir=s"]
LONG = ["norm=rmsnorm,layernorm", "jobs=2", "sweep.dir=s", *drill.SMALL, "train.steps=100000"]
LONG = [word for word in LONG if word != "train.steps=5"]


def start(*words: str, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "encoderkit", *words]
    return subprocess.Popen(command, text=True, **options)  # type: ignore[call-overload,no-any-return]


def found(place: Path) -> list[tuple[str, str]]:
    loaded = [record.load(path.parent) for path in sorted(place.glob("s/*/record.json"))]
    return [(each.state, each.reason) for each in loaded]


def until_it_trains(place: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while len([path for path in place.glob("s/*/checkpoint") if path.is_dir()]) < 2:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_streams(closed: tuple[int, ...], tmp_path: Path) -> None:
    """Cron and daemons start programs so; a pipe must not get the number of a stream."""

    def close() -> None:
        for number in closed:
            os.close(number)

    with start("sweep", *TWO, *drill.SMALL, cwd=tmp_path, preexec_fn=close) as process:
        process.wait(120)
    assert (process.returncode, found(tmp_path)) == (0, [("ok", "")] * 2)


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    with start("sweep", *TWO, *drill.SMALL, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.wait(120)
    assert (process.returncode, found(tmp_path)) == (0, [("ok", "")] * 2)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full here")
def test_a_full_disk_under_what_is_printed(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        options = {"stdout": full, "stderr": subprocess.PIPE}
        with start("sweep", *TWO, *drill.SMALL, cwd=tmp_path, **options) as process:
            _, err = process.communicate(timeout=120)
    assert (process.returncode, found(tmp_path)) == (0, [("ok", "")] * 2)
    assert "No space left on device" in err and "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_manager_that_ends_it_ends_it_in_order(number: signal.Signals, tmp_path: Path) -> None:
    with start("sweep", *LONG, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        until_it_trains(tmp_path, process)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted. To go on: encoderkit sweep" in err
    assert found(tmp_path) == [("interrupted", "asked to stop by SIGTERM")] * 2


def test_a_terminal_that_goes_away_from_one_who_ignores_it(tmp_path: Path) -> None:
    terminal, its_end = pty.openpty()

    def leave() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    options = {"stdout": its_end, "stderr": its_end, "stdin": its_end, "preexec_fn": leave}
    with start("sweep", *LONG, cwd=tmp_path, **options) as process:
        os.close(its_end)
        until_it_trains(tmp_path, process)
        os.close(terminal)
        time.sleep(1)  # ten lines that nobody can be shown
        assert process.poll() is None
        process.terminate()
        process.wait(60)
    assert process.returncode == 130
    assert found(tmp_path) == [("interrupted", "asked to stop by SIGTERM")] * 2


@pytest.mark.parametrize(
    "spoil,words",
    [
        ("ulimit -n 16", "no process can be started: Too many open files. Try jobs=1, "),
        (f"export TMPDIR=$PWD/{'t' * 120}; mkdir $TMPDIR", "or TMPDIR=/tmp"),
        ("mkdir gone; cd gone; rmdir ../gone", "the current directory is gone. Type cd, "),
    ],
)
def test_a_place_where_nothing_can_run_is_said_in_a_line(
    spoil: str, words: str, tmp_path: Path
) -> None:
    line = f"{spoil}; exec {sys.executable} -m encoderkit sweep seeds=12 jobs=12 sweep.dir=$OLD/s"
    line += f" {' '.join(drill.SMALL)}"
    shell = ["bash", "-c", line]
    env = {**os.environ, "OLD": str(tmp_path)}
    done = subprocess.run(shell, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and words in done.stderr
    assert "encoderkit failed" not in done.stderr


def test_a_directory_that_is_removed_under_a_sweep(tmp_path: Path) -> None:
    words = [*TWO, *drill.SMALL, "seeds=20", "jobs=1"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start("sweep", *[w for w in words if w != "jobs=2"], cwd=tmp_path, **options) as process:
        end = time.monotonic() + 120
        while not list(tmp_path.glob("s/*/record.json")):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.02)
        subprocess.run(["rm", "-rf", "s"], cwd=tmp_path)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Traceback" not in out + err, err


def test_another_sweep_in_its_directory_waits(tmp_path: Path) -> None:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start("sweep", *LONG, cwd=tmp_path, **options) as first:
        until_it_trains(tmp_path, first)
        plan = (tmp_path / "s" / "sweep.json").read_bytes()
        other = ["norm=scalenorm,layernorm", *LONG[1:]]
        with start("sweep", *other, cwd=tmp_path, **options) as second:
            _, err = second.communicate(timeout=120)
        assert second.returncode == 1 and (tmp_path / "s" / "sweep.json").read_bytes() == plan
        assert "s: another sweep runs there: encoderkit sweep norm=rmsnorm,layernorm" in err
        assert err.endswith("give this one a place of its own: sweep.name=NAME.\n")
        first.terminate()
        first.communicate(timeout=60)
