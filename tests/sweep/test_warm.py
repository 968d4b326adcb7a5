from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from encoderkit.sweep import runner, warm

CHECK = """
import json, sys, threading
import encoderkit.sweep.warm as warm
import torch
from encoderkit import plugins
from encoderkit.sweep.warm import Leash
print(json.dumps({
    "missing": [name for name in warm.MODULES if name not in sys.modules],
    "plugins": plugins.registry.cache_info().currsize,
    "builtin": [n for n in sys.modules if n.startswith("encoderkit_builtin")],
    "cuda": torch.cuda.is_initialized(),
    "threads": threading.active_count(),
    "leashes": sum(isinstance(finder, Leash) for finder in sys.meta_path),
}))
"""

ORPHAN = """
import os, sys, time
if os.fork() == 0:
    from encoderkit.sweep.warm import Leash
    leash = Leash()
    open(sys.argv[1], "w").close()
    while True:
        time.sleep(0.01)
        leash.find_spec("anything")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


def test_the_server_imports_much_and_loads_no_plugin() -> None:
    run = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == (
        '{"missing": [], "plugins": 0, "builtin": [], "cuda": false, "threads": 1, "leashes": 0}'
    )


def test_the_leash_finds_nothing_while_the_parent_lives() -> None:
    warm.Leash().find_spec("anything")  # would end the process
    assert (warm.__name__,) == runner.PRELOAD


def test_the_leash_ends_an_orphan(tmp_path: Path) -> None:
    # The orphan inherits the pipe, so `run` returns only when it has ended too.
    begun = time.monotonic()
    command = [sys.executable, "-c", ORPHAN, os.fspath(tmp_path / "sign")]
    subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=30)
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize(("origin", "code"), [("", 3), ("multiprocessing.forkserver", 0)])
def test_only_a_server_ends_fast(origin: str, code: int) -> None:
    # A server is known by its command line, which a comment can imitate.
    script = f"import sys\nimport encoderkit.sweep.warm  # {origin}\nsys.exit(3)"
    run = subprocess.run([sys.executable, "-c", script], check=False)
    assert run.returncode == code
