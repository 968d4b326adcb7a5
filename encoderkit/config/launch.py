"""Hydra's own application: multirun with its launchers, and shell completion."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
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

EXTRAS = {"joblib": "joblib", "submitit_local": "submitit"}  # launchers that our extras install


def multirun(
    overrides: Sequence[str],
    config_dirs: Sequence[Path],
    job: Callable[[Config], Any],
    scratch: Path,
) -> list[str]:
    """Run `job` for every point of the overrides under Hydra's multirun, with any launcher.

    What Hydra and its launchers write goes to `scratch`. Nothing that `job` raises but an interrupt
    reaches Hydra, which would drop other points: that is returned in words, as is what the launcher
    itself raises.
    """

    def task(tree: DictConfig) -> None:
        try:
            with without_environment():
                whole = dict(OmegaConf.to_container(tree, resolve=True))  # type: ignore[arg-type]
            job(check({str(k): v for k, v in whole.items()}, registry()))
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            (scratch / f"{uuid.uuid4()}.lost").write_text(text, "utf-8", "backslashreplace")

    # The overrides have the axes of an experiment already.
    ours = ["--multirun", f"hydra.sweep.dir={scratch}", "hydra.sweeper.params=null"]
    lost = []
    try:
        _application(task, [*ours, *overrides], config_dirs)
    except Exception as error:
        lines = str(error).splitlines() or [""]
        lost.append(f"the launcher failed: {type(error).__name__}: {lines[0]}")
    lost += [file.read_text("utf-8") for file in sorted(scratch.glob("*.lost"))]
    return list(dict.fromkeys(lost))


def check_launcher(composer: Composer, words: Sequence[str]) -> str:
    """Check the words that `encoderkit train -m` hands to Hydra itself; return the launcher's name.

    Errors: ConfigError when they reach beyond the launcher, or when Hydra has no such launcher.
    """
    known = GlobalHydra.instance().config_loader().get_group_options("hydra/launcher")
    name = "basic"
    faults = []
    for word in words:
        key, _, value = word.partition("=")
        if key != "hydra/launcher" and not key.startswith("hydra.launcher."):
            hint = "Type hydra/launcher=NAME, or hydra.launcher.OPTION=VALUE."
            faults.append(Fault(word, "only the launcher of Hydra can be chosen.", hint))
        elif any(code in word for code in CODE):
            faults.append(Fault(word, "a configuration names parts, never code.", "Remove it."))
        elif key == "hydra/launcher" and value not in known:
            extra = EXTRAS.get(value)
            hint = f'Install it: pip install "encoderkit[{extra}]".' if extra else ""
            problem = f"no such launcher is installed; there are {', '.join(known)}."
            faults.append(Fault(word, problem, hint))
        elif key == "hydra/launcher":
            name = value
    if faults:
        raise ConfigError(faults)
    composer.compose(tuple(words))
    return name


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
        with borrowed(presets), _errors_raised():
            Plugins.instance().register(OurPresets)
            hydra.main(str(conf_dir()), "config", VERSION_BASE)(task)()
    finally:
        sys.argv = held


@contextmanager
def _errors_raised() -> Iterator[None]:
    """Let Hydra raise errors, which it would print and exit on."""
    name = "HYDRA_FULL_ERROR"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
