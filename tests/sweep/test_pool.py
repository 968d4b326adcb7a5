from __future__ import annotations

import errno
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from encoderkit.errors import StoreError
from encoderkit.sweep import child, pool
from encoderkit.sweep.pool import AGAIN, Ending, Events, Pool, Work

# The works of these tests: a module in a file, since a process imports what it is to call.
MODULE = """
import os, signal, subprocess, sys, threading, time
from pathlib import Path

def double(x, *, stop):
    print("doubling", x)
    print("loudly", file=sys.stderr)
    return 2 * x

def where(*, stop):
    return os.getpid()

def die(number, *, stop):
    os.kill(os.getpid(), number)

def leave(code, *, stop):
    os._exit(code)

def quit(code, *, stop):
    sys.exit(code)

def fail(*, stop):
    raise ValueError("as it must \\u20ac")

def obey(sign, *, stop):
    Path(sign).touch()
    while not stop():
        time.sleep(0.01)
    return stop()

def ignore(sign, *, stop):
    Path(sign).write_text(str(os.getpid()))
    while True:
        time.sleep(0.01)

def hang_on(*, stop):
    threading.Thread(target=time.sleep, args=(600,)).start()
    return "done"

def start_another(pid, *, stop):
    Path(pid).write_text(str(subprocess.Popen(["sleep", "600"]).pid))
    return "done"

def third_time(count, *, stop):
    path = Path(count)
    n = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(n))
    return n if n == 3 else "again"
"""


class Notes(Events):
    """Writes down what a pool tells."""

    def __init__(self) -> None:
        self.endings: dict[str, Ending] = {}
        self.running = self.most = self.again = self.ticks = 0

    def started(self, work: Work) -> None:
        self.running += 1
        self.most = max(self.most, self.running)

    def ended(self, work: Work, ending: Ending) -> Work | None:
        self.running -= 1
        assert work.name not in self.endings
        self.endings[work.name] = ending
        return None

    def postponed(self, work: Work) -> None:
        self.running -= 1
        self.again += 1

    def tick(self) -> None:
        self.ticks += 1


Make = Callable[..., Work]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    (tmp_path / "pool_works.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pool_works", raising=False)

    def work(function: str, *arguments: Any, name: str = "") -> Work:
        pool_works = importlib.import_module("pool_works")

        name = name or function
        return Work(name, getattr(pool_works, function), arguments, tmp_path / f"{name}.txt")

    return work


def run(works: list[Work], jobs: int = 2, **settings: Any) -> Notes:
    notes = Notes()
    assert not Pool(jobs=jobs, **settings).run(works, notes)
    assert notes.running == 0
    return notes


def test_values_come_back_and_output_goes_to_the_log(make: Make, tmp_path: Path) -> None:
    notes = run([make("double", n, name=f"n{n}") for n in range(4)])
    assert {name: e.value for name, e in notes.endings.items()} == {
        f"n{n}": 2 * n for n in range(4)
    }
    assert all(e.cause == "" and e.seconds > 0 for e in notes.endings.values())
    assert (tmp_path / "n3.txt").read_text() == "doubling 3\nloudly\n"
    assert notes.ticks > 0


def test_each_work_has_its_own_process(make: Make) -> None:
    notes = run([make("where", name=f"w{n}") for n in range(4)])
    pids = {e.value for e in notes.endings.values()}
    assert len(pids) == 4 and os.getpid() not in pids


def test_no_more_than_jobs_run_at_once(make: Make) -> None:
    assert run([make("where", name=f"w{n}") for n in range(5)], jobs=2).most == 2
    assert run([make("where", name=f"w{n}") for n in range(3)], jobs=1).most == 1


@pytest.mark.parametrize(
    ("function", "argument", "words"),
    [
        ("die", signal.SIGKILL, "its process was killed by signal 9 (SIGKILL)"),
        ("die", signal.SIGABRT, "its process was killed by signal 6 (SIGABRT)"),
        ("leave", 0, "its process ended with exit code 0"),
        ("leave", 3, "its process ended with exit code 3"),
        ("quit", 0, "its process ended with exit code 0"),
    ],
)
def test_a_death_is_told_in_words_and_the_others_go_on(
    make: Make, function: str, argument: int, words: str
) -> None:
    notes = run([make(function, argument), make("double", 4)])
    ending = notes.endings[function]
    assert (ending.value, ending.cause, ending.words) == (None, "died", words)
    assert notes.endings["double"].value == 8


def test_an_exception_stands_in_the_log(make: Make, tmp_path: Path) -> None:
    ending = run([make("fail")]).endings["fail"]
    assert (ending.cause, ending.words) == ("raised", "ValueError: as it must €")
    assert "ValueError: as it must" in (tmp_path / "fail.txt").read_text()


def test_time_runs_out(make: Make, tmp_path: Path) -> None:
    notes = run([make("ignore", tmp_path / "a"), make("double", 1)], timeout=1.0)
    assert (notes.endings["ignore"].value, notes.endings["ignore"].cause) == (None, "timeout")
    assert 1.0 <= notes.endings["ignore"].seconds < 5
    assert notes.endings["double"].value == 2


def test_a_thread_that_stays_does_not_keep_the_work(make: Make) -> None:
    ending = run([make("hang_on")], patience=0.3).endings["hang_on"]
    assert (ending.value, ending.cause) == ("done", "") and ending.seconds < 10


def gone(pid: int) -> bool:
    """Wait a little for a process to be gone, dead and unburied included."""
    for _ in range(100):
        look = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
        if not look.stdout.strip() or look.stdout.startswith("Z"):
            return True
        time.sleep(0.02)
    return False


def test_what_a_work_started_ends_with_it(make: Make, tmp_path: Path) -> None:
    assert run([make("start_another", tmp_path / "pid")]).endings["start_another"].value == "done"
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_killed_server_leaves_no_work_behind(make: Make, tmp_path: Path) -> None:
    class Kill(Notes):
        def started(self, work: Work) -> None:
            super().started(work)
            if work.name == "ignore":
                while not (tmp_path / "sign").exists():
                    time.sleep(0.01)
                server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
                self.child = int((tmp_path / "sign").read_text())
                os.kill(server, signal.SIGKILL)

    notes = Kill()
    Pool(jobs=1).run([make("ignore", tmp_path / "sign"), make("double", 4)], notes)
    assert notes.endings["ignore"].cause == "orphaned" and gone(notes.child)
    assert notes.endings["double"].value == 8


def test_work_may_ask_to_be_called_again(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_PAUSE", 0.05)
    notes = run([make("third_time", tmp_path / "count"), make("double", 1)], jobs=1)
    assert AGAIN == "again"
    assert (notes.endings["third_time"].value, notes.again) == (3, 2)


def interrupt_when(path: Path, times: int = 1) -> threading.Thread:
    def work() -> None:
        while not path.exists():
            time.sleep(0.01)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_ctrl_c_orders_to_stop_and_starts_nothing_more(make: Make, tmp_path: Path) -> None:
    thread = interrupt_when(tmp_path / "sign")
    notes = Notes()
    assert Pool(jobs=1).run([make("obey", tmp_path / "sign"), make("double", 1)], notes)
    thread.join()
    assert {n: e.value for n, e in notes.endings.items()} == {"obey": "asked to stop by SIGTERM"}


@pytest.mark.parametrize(("times", "grace"), [(2, 60.0), (1, 0.3)])
def test_who_does_not_obey_is_killed(make: Make, tmp_path: Path, times: int, grace: float) -> None:
    thread = interrupt_when(tmp_path / "sign", times)
    # A work that never looks: the order comes as SIGTERM, which it does not die of.
    notes = Notes()
    assert Pool(jobs=1, grace=grace).run([make("ignore", tmp_path / "sign")], notes)
    thread.join()
    assert (notes.endings["ignore"].value, notes.endings["ignore"].cause) == (None, "interrupted")


def test_an_event_that_fails_leaves_no_process_behind(make: Make, tmp_path: Path) -> None:
    class Broken(Events):
        def tick(self) -> None:
            raise RuntimeError("the view broke")

    before = set(multiprocessing.active_children())  # other libraries' pools
    with pytest.raises(RuntimeError, match="the view broke"):
        Pool(jobs=1).run([make("ignore", tmp_path / "sign")], Broken())
    assert set(multiprocessing.active_children()) <= before


def test_spawning_serves_where_there_is_no_fork_server(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert pool.context(()).get_start_method() == "spawn"
    assert run([make("double", 21)], jobs=1).endings["double"].value == 42


def refuse(error: Exception) -> Callable[..., Any]:
    def start(*_: Any) -> Any:
        raise error

    return start


@pytest.mark.parametrize(
    "error,words",
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "Too many open files"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "Connection refused"),
        (EOFError("gone"), "gone"),
    ],
)
def test_a_system_that_starts_no_process_is_an_error_in_words(
    make: Make, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    monkeypatch.setattr(pool, "_TRIES", 2)
    process = type(pool.context(()).Process())  # type: ignore[attr-defined]
    monkeypatch.setattr(process, "start", refuse(error))
    with pytest.raises(StoreError) as caught:
        run([make("double", 21)])
    assert str(caught.value) == (
        f"no process can be started: {words}. Try jobs=1, `ulimit -n 1024`, or TMPDIR=/tmp."
    )


def test_so_is_one_that_starts_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver, "ensure_running", refuse(OSError("AF_UNIX path too long")))
    with pytest.raises(StoreError, match="AF_UNIX path too long. Try jobs=1, .* TMPDIR=/tmp"):
        pool.context((), start=True)


def test_a_log_that_cannot_be_opened_is_said_by_the_process(make: Make, tmp_path: Path) -> None:
    ending = run([replace(make("double", 21), log=tmp_path)]).endings["double"]
    assert (ending.cause, ending.value) == ("raised", None)
    assert "Is a directory" in ending.words


def test_a_limit_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child.resource, "getrlimit", lambda kind: (2**30, 2**30))
    with pytest.raises(OSError, match="sweep.memory=2 is above the limit of 1 GiB"):
        child._limit(2**31)
