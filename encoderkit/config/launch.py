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

from encoderkit.config.check import CODE, check
from encoderkit.config.compose import VERSION_BASE, Composer, borrowed
from encoderkit.config.overrides import without_environment
from encoderkit.config.presets import Presets
from encoderkit.config.schema import Config
from encoderkit.errors import ConfigError, Fault
from encoderkit.plugins import registry
from encoderkit.registry import conf_dir


def multirun(
    overrides: Sequence[str], config_dirs: Sequence[Path], job: Callable[[Config], Any]
) -> None:
    """Run `job` for every point of the overrides under Hydra's multirun, with any launcher."""

    def task(tree: DictConfig) -> Any:
        with without_environment():
            whole = OmegaConf.to_container(tree, resolve=True)
        return job(check({str(k): v for k, v in dict(whole).items()}, registry()))  # type: ignore[arg-type]

    # Hydra's sweeper writes a multirun.yaml of its own; the results directory is ours alone. The
    # overrides have the axes of an experiment already.
    with tempfile.TemporaryDirectory(prefix="encoderkit-") as scratch:
        ours = ["--multirun", f"hydra.sweep.dir={scratch}", "hydra.sweeper.params=null"]
        _application(task, [*ours, *overrides], config_dirs)


def check_launcher(composer: Composer, words: Sequence[str]) -> None:
    """Check the words that `encoderkit train -m` hands to Hydra itself.

    Errors: ConfigError when they reach beyond the launcher, or when Hydra has no such launcher.
    """
    faults = []
    for word in words:
        key = word.partition("=")[0]
        if key != "hydra/launcher" and not key.startswith("hydra.launcher."):
            hint = "Type hydra/launcher=NAME, or hydra.launcher.OPTION=VALUE."
            faults.append(Fault(word, "only the launcher of Hydra can be chosen.", hint))
        elif any(code in word for code in CODE):
            faults.append(Fault(word, "a configuration names parts, never code.", "Remove it."))
    if faults:
        raise ConfigError(faults)
    composer.compose(tuple(words))


def complete(query: str, config_dirs: Sequence[Path] = ()) -> None:
    """Print what Hydra's shell completion answers; `query` is such as `query=bash`."""
    _application(lambda tree: None, ["--shell-completion", query], config_dirs)


def _application(
    task: Callable[[DictConfig], Any], argv: Sequence[str], config_dirs: Sequence[Path]
) -> None:
    presets = Presets(registry(), config_dirs)
    directories = [path.resolve() for path in presets.directories]

    class OurPresets(SearchPathPlugin):
        """Puts the directories of --config-dir on Hydra's search path."""

        def manipulate_search_path(self, search_path: Any) -> None:
            for directory in directories:
                search_path.append("encoderkit", f"file://{directory}")

    held, sys.argv = sys.argv, ["encoderkit", *argv]
    try:
        with borrowed(presets):
            Plugins.instance().register(OurPresets)
            hydra.main(str(conf_dir()), "config", VERSION_BASE)(task)()
    finally:
        sys.argv = held
