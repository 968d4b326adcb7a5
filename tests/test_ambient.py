"""What an import may not change for the whole process."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

import encoderkit
from encoderkit import plugins
from encoderkit.errors import PluginError

CHANGES = {
    "import torch; torch.set_default_dtype(torch.float64)": (
        "torch's default dtype: torch.float32 -> torch.float64"
    ),
    "import torch; torch.set_num_threads(3)": "torch's threads: 1 -> 3",
    "import torch; torch.manual_seed(3)": "torch's random numbers: ",
    "import torch; torch.rand(3)": "torch's random numbers: ",
    "import torch; torch.set_default_device('meta')": "torch's default device: cpu -> meta",
    "import torch; torch.set_grad_enabled(False)": "torch's gradient mode: True -> False",
    "import random; random.seed(3)": "Python's random numbers: ",
    "import random; random.random()": "Python's random numbers: ",
    "import numpy as np; np.random.seed(3)": "numpy's random numbers: ",
    "import numpy as np; np.random.rand()": "numpy's random numbers: ",
    "import warnings; warnings.simplefilter('ignore')": "first ignore Warning",
    "import os; os.environ['EK_TEST_NEW'] = 'x' * 99": (f"$EK_TEST_NEW: not set -> {'x' * 37}..."),
    "import os; os.environ['EK_TEST_OLD'] = '2'": "$EK_TEST_OLD: 1 -> 2",
    "import os; del os.environ['EK_TEST_OLD']": "$EK_TEST_OLD: 1 -> not set",
    "import os; os.chdir('/')": "the working directory: ",
}


def state():
    """Return what a test can see of the process's state."""
    return (
        *[torch.get_default_dtype(), torch.get_num_threads(), str(torch.get_default_device())],
        *[torch.is_grad_enabled(), torch.get_rng_state().tolist(), random.getstate()],
        *[str(np.random.get_state()), list(warnings.filters), dict(os.environ), os.getcwd()],
    )


@pytest.fixture(autouse=True)
def usual(monkeypatch, tmp_path):
    """Make the state one of which every change shows."""
    monkeypatch.setenv("EK_TEST_OLD", "1")
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("code", CHANGES)
def test_a_plugin_whose_import_changes_global_state_is_left_out(install, code):
    install("pkg-bad", ("norm", "bad"), __init__=code)
    install("pkg-good", ("norm", "good"))
    before = state()
    (problem,) = plugins.registry().problems
    assert state() == before
    line = str(problem)
    start = "plugin pkg-bad (pkg-bad 1.0) failed at import: it changed, for the whole process, "
    assert line.startswith(start) and CHANGES[code] in line and "\n" not in line
    assert "good" in plugins.registry().names("norm")


@pytest.mark.parametrize("code", CHANGES)
def test_a_part_whose_import_changes_global_state_is_refused(install, code):
    install("pkg-bad", ("norm", "bad"), part=f"{code}\nclass Plain: pass\n")
    before = state()
    for _ in range(2):  # the second time the module is there already
        with pytest.raises(PluginError) as caught:
            encoderkit.build("norm=bad")
        words = "norm=bad (pkg-bad 1.0): pkg_bad.part:Plain cannot be loaded: it changed, for the "
        assert str(caught.value).startswith(words) and CHANGES[code] in str(caught.value)
        assert state() == before


def test_state_is_put_back_when_the_import_fails_too(install):
    install("pkg-bad", __init__="import torch\ntorch.set_num_threads(3)\n1 / 0")
    before = state()
    (problem,) = plugins.registry().problems
    assert "ZeroDivisionError" in str(problem)
    assert state() == before


def test_hooks_may_not_change_it_either(install):
    hook = "import random\nfrom encoderkit.api import hookimpl\nAPI_VERSION = 1\n@hookimpl\n"
    install("pkg-bad", __init__=f"{hook}def encoderkit_parts():\n    random.seed(1)\n    return []")
    (problem,) = plugins.registry().problems
    assert "failed at hooks: it changed, for the whole process, Python's random" in str(problem)


def test_every_change_is_named(install):
    install("pkg-bad", __init__="import os, random\nrandom.seed(1)\nos.environ['EK_A'] = '1'")
    (problem,) = plugins.registry().problems
    assert " Python's random numbers: " in str(problem) and "; $EK_A: not set -> 1" in str(problem)


def test_what_another_library_sets_up_for_itself_is_no_change(install):
    module = install("pkg-good", ("norm", "good"), __init__="import ek_library\nAPI_VERSION = 0")
    setup = "import warnings, os\nwarnings.simplefilter('ignore')\nos.environ['EK_LIB'] = '1'\n"
    (module.parent / "ek_library.py").write_text(setup)
    held = list(warnings.filters)
    try:
        (problem,) = plugins.registry().problems
        assert "failed at API version" in str(problem)
        assert os.environ.pop("EK_LIB") == "1"
    finally:
        warnings.filters[:] = held


def test_what_another_library_does_to_the_numbers_is_one(install):
    module = install("pkg-bad", __init__="import ek_seeding")
    (module.parent / "ek_seeding.py").write_text("import random\nrandom.seed(1)\n")
    (problem,) = plugins.registry().problems
    assert "Python's random numbers" in str(problem)


FRESH = """
import json, sys
from encoderkit import plugins
print(json.dumps([str(p) for p in plugins.registry().problems]))
if "torch" in sys.modules:
    import torch
    print(torch.get_default_dtype(), torch.initial_seed() == 3, torch.rand(1).dtype)
"""


DTYPE, THREADS, SEED = [code for code in CHANGES if "torch" in code][:3]


@pytest.mark.parametrize(
    ("how", "code"),
    [("encoderkit.nn", ""), ("torch", DTYPE), ("encoderkit.nn", THREADS), ("ek_wraps_torch", SEED)],
)
def test_the_first_import_of_torch_is_no_change_and_what_follows_is(install, how, code):
    install("pkg-a", ("norm", "foo"), __init__=f"import {how}\n{code}\nAPI_VERSION = 0")
    module = install("pkg-b", ("norm", "bar"))
    (module.parent / "ek_wraps_torch.py").write_text("import torch")
    command = [sys.executable, "-c", FRESH]
    path = os.pathsep.join([str(module.parent), *sys.path])
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    (line,) = json.loads(first)
    wanted = CHANGES[code].partition(":")[0] if code else "failed at API version"
    assert wanted in line
    assert second == "torch.float32 False torch.float32"
