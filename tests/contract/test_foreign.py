"""encoderkit inside other people's programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

APPLICATION = """
import hydra
from omegaconf import DictConfig

@hydra.main(version_base="1.3", config_path=None)
def app(cfg: DictConfig) -> None:
    import encoderkit
    from hydra.core.global_hydra import GlobalHydra
    held = GlobalHydra.instance().hydra
    stack = encoderkit.build("norm=rmsnorm", "model.n_layers=1", f"model.d_model={cfg.width}")
    assert GlobalHydra.instance().hydra is held
    print("built", stack.final.weight.shape[0])
    again = encoderkit.build({"norm": "rmsnorm", "model": {"n_layers": 1, "d_model": cfg.width}})
    assert all((a == b).all() for a, b in zip(stack.parameters(), again.parameters()))

app()
"""

SAVE = """
import sys, torch
from importlib.metadata import EntryPoint
from encoderkit import build, plugins
found = plugins.load([EntryPoint("prmsnorm", "encoderkit_prmsnorm", plugins.GROUP)])
plugins.registry().entries[("norm", "prmsnorm")] = found.entries[("norm", "prmsnorm")]
torch.manual_seed(0)
stack = build("norm=prmsnorm", "model.n_layers=1").eval()
x = torch.randn(2, 5, 64)
torch.save({"stack": stack, "x": x, "y": stack(x)}, sys.argv[1])
"""

LOAD = """
import sys, torch
held = torch.load(sys.argv[1], weights_only=False)
assert torch.equal(held["stack"](held["x"]), held["y"])
print("equal")
"""


def python(*arguments, cwd, path):
    command = [sys.executable, "-W", "error", *arguments]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def path():
    places = (ROOT, ROOT / "plugins", ROOT / "plugins" / "encoderkit-prmsnorm")
    return ":".join(str(place) for place in places)


def test_inside_somebodys_hydra_main(tmp_path, path):
    (tmp_path / "app.py").write_text(APPLICATION)
    assert "built 32" in python("app.py", "+width=32", cwd=tmp_path, path=path)


def test_a_saved_stack_with_a_strangers_part_loads_in_a_fresh_process(tmp_path, path):
    python("-c", SAVE, "stack.pt", cwd=tmp_path, path=path)
    assert python("-c", LOAD, "stack.pt", cwd=tmp_path, path=path) == "equal\n"
