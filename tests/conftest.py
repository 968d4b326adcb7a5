"""What every test runs under: one thread, and property tests that draw the same each time."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from encoderkit import plugins

torch.set_num_threads(1)
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("same")

NORM = """
from encoderkit.nn import Norm

class Plain(Norm):
    def forward(self, x, ctx):
        return x * {gain}
"""
PLUGIN = """
from pathlib import Path
from encoderkit.api import Part, hookimpl

API_VERSION = 1

@hookimpl
def encoderkit_parts():
    return [Part(kind, name, "{module}.part:Plain", "", traits=traits) for kind, name in {parts}]

@hookimpl
def encoderkit_presets():
    return Path(__file__).parent / "conf"

from encoderkit.api import Traits
traits = Traits()
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Install packages of strangers for one test: each name with parts, presets or whole files."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def one(
        distribution: str,
        *parts: tuple[str, str],
        point: str = "",
        gain: float = 1.0,
        presets: dict[str, str] | None = None,
        **files: str,
    ) -> Path:
        module = distribution.replace("-", "_").replace(".", "_")
        code = {"__init__": PLUGIN.format(module=module, parts=parts), "part": NORM}
        (site / module / "conf").mkdir(parents=True)
        for name, text in (code | files).items():
            (site / module / f"{name}.py").write_text(text.replace("{gain}", str(gain)))
        for name, text in (presets or {}).items():
            (site / module / "conf" / name).parent.mkdir(exist_ok=True)
            (site / module / "conf" / name).write_text(text)
        about = site / f"{module}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Name: {distribution}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(
            f"[{plugins.GROUP}]\n{point or distribution} = {module}\n"
        )
        importlib.invalidate_caches()
        plugins.registry.cache_clear()
        return site / module

    yield one
    plugins.registry.cache_clear()
    for name, found in list(sys.modules.items()):
        if (getattr(found, "__file__", None) or "").startswith(str(site)):
            del sys.modules[name]
