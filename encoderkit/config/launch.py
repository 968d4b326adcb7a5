"""Hydra's own application: multirun with its launchers, and shell completion."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from encoderkit.config.check import check
from encoderkit.config.compose import VERSION_BASE, publish
from encoderkit.config.presets import Presets, conf_dir
from encoderkit.config.schema import Config
from encoderkit.plugins import registry


def multirun(
    overrides: Sequence[str], config_dirs: Sequence[Path], job: Callable[[Config], Any]
) -> None:
    """Run `job` for every point of the overrides under Hydra's multirun, with any launcher."""

    def task(tree: DictConfig) -> Any:
        whole = OmegaConf.to_container(tree, resolve=True)
        return job(check({str(k): v for k, v in dict(whole).items()}, registry()))  # type: ignore[arg-type]

    # Hydra's sweeper writes a multirun.yaml of its own; the results directory is ours alone.
    with tempfile.TemporaryDirectory(prefix="encoderkit-") as scratch:
        _application(task, ["--multirun", f"hydra.sweep.dir={scratch}", *overrides], config_dirs)


def complete(query: str, config_dirs: Sequence[Path] = ()) -> None:
    """Print what Hydra's shell completion answers; `query` is such as `query=bash`."""
    _application(lambda tree: None, ["--shell-completion", query], config_dirs)


def _application(
    task: Callable[[DictConfig], Any], argv: Sequence[str], config_dirs: Sequence[Path]
) -> None:
    publish(registry())
    directories = Presets(registry(), config_dirs).directories

    class OurPresets(SearchPathPlugin):
        """Puts the directories of plugins and of --config-dir on Hydra's search path."""

        def manipulate_search_path(self, search_path: Any) -> None:
            for directory in directories:
                search_path.append("encoderkit", f"file://{directory.resolve()}")

    Plugins.instance().register(OurPresets)
    held, sys.argv = sys.argv, ["encoderkit", *argv]
    try:
        hydra.main(str(conf_dir()), "config", VERSION_BASE)(task)()
    finally:
        sys.argv = held
