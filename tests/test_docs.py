"""What the documentation tells people to type works as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from encoderkit.cli import main

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
BASH = re.findall(r"```bash\n(.*?)```", README, re.S)
PYTHON = re.findall(r"```python\n(.*?)```", README, re.S)
GUIDE = re.findall(r"```sh\n(.*?)```", (ROOT / "plugins" / "README.md").read_text("utf-8"), re.S)


def run(command, directory):
    """Run a shell text with this environment's encoderkit in front."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = os.pathsep.join([str(directory / "encoderkit-mynorm"), *sys.path])
    shell = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(
        shell, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


# The packaging check installs for real. Here the example is installed already, and what `parts new`
# writes is on the path; then this is what an installer leaves.
INSTALL = """
import sys, tomllib
from pathlib import Path
home = Path(sys.argv[1])
project = tomllib.loads((home / "pyproject.toml").read_text())["project"]
about = home / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
about.mkdir()
(about / "METADATA").write_text(f"Name: {project['name']}\\nVersion: {project['version']}\\n")
for group, points in project["entry-points"].items():
    lines = [f"[{group}]", *(f"{name} = {module}" for name, module in points.items())]
    (about / "entry_points.txt").write_text("\\n".join(lines))
"""


@pytest.mark.parametrize("commands", ["".join(BASH), "".join(GUIDE)], ids=["README", "plugins"])
def test_commands(commands, tmp_path):
    (tmp_path / "install.py").write_text(INSTALL)
    commands = re.sub(r"^pip install -e (\./\S+)$", r"python install.py \1", commands, flags=re.M)
    run(re.sub(r"^pip install .*$", "", commands, flags=re.M), tmp_path)


def test_there_is_something_to_run():
    assert len(BASH) >= 5
    assert len(PYTHON) >= 1
    assert len(GUIDE) == 4


@pytest.mark.parametrize("code", PYTHON)
def test_python(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


def test_the_mistake_reads_as_shown(capsys):
    (words, shown) = re.findall(r"```console\n\$ encoderkit (.*?)\n(.*?)```", README, re.S)[0]
    assert main(words.split()) == 2
    # Other people's norms may be installed too.
    err = re.sub(r"(derf, none)(, \w+)+", r"\1", capsys.readouterr().err)
    assert err == shown


@pytest.mark.parametrize("page", [README, *GUIDE])
def test_no_placeholder_was_left(page):
    assert re.findall(r"^[A-Z_]+$", page, re.M) == []
