"""From a run's directory back to what it was: its configuration, its cell, its trained model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from encoderkit.config.check import check, plain
from encoderkit.config.identity import identity, part_versions
from encoderkit.config.schema import Config
from encoderkit.config.text import read_yaml
from encoderkit.errors import CheckpointError, StoreError
from encoderkit.plugins import registry
from encoderkit.sweep import git, record
from encoderkit.sweep.axes import some
from encoderkit.sweep.cell import Cell
from encoderkit.sweep.draft import Tasks
from encoderkit.sweep.run import CONFIG_FILE

if TYPE_CHECKING:
    from encoderkit.nn.model import EncoderModel


def configuration(directory: Path) -> Config:
    """Return the configuration of a run, read with no Hydra.

    Errors: StoreError when it cannot be read; ConfigError when it is no longer valid.
    """
    path = directory / CONFIG_FILE
    try:
        tree = read_yaml(path.read_bytes())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StoreError(f"{path}: cannot be read: {error}") from error
    return check(tree if isinstance(tree, dict) else {}, registry())


def load(directory: Path | str, which: str = "") -> EncoderModel:
    """Return the model of a run with the weights of its last checkpoint, in eval mode, on the CPU.

    `which` names another one that `run.keep` kept: "best", or a step such as "400".

    Errors: StoreError, ConfigError, CheckpointError.
    """
    from encoderkit.data.build import build_task  # these import torch
    from encoderkit.nn.build import build_model
    from encoderkit.train import checkpoint

    directory = Path(directory)
    config = configuration(directory)
    task = build_task(config)
    model = build_model(config, task.vocab, task.outputs)
    place = directory / (f"{checkpoint.DIRECTORY}-{which}" if which else checkpoint.DIRECTORY)
    held = checkpoint.load(place)
    if held is None:
        known = sorted(path.name for path in directory.glob(f"{checkpoint.DIRECTORY}*"))
        found = f"There are {', '.join(known)}." if known else "Train it first, with run.keep=last."
        raise CheckpointError(f"{directory}: the run has no {place.name}. {found}")
    with checkpoint.of_this_model():
        checkpoint.restore(model, held)
    return model.eval()


def recorded(directory: Path) -> tuple[Path, Cell]:
    """Return the results directory of a run, and the cell that it was.

    Errors: StoreError when the directory holds no run, or when its parts or data have changed;
    ConfigError when its configuration is no longer valid.
    """
    directory = directory.resolve()
    try:
        found = record.load(directory)
    except StoreError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        runs = sorted(path.parent for path in directory.glob(f"[!.]*/{record.FILE}"))
        hint = "Type the directory of a run, such as runs/train/default-seed0-0123456789ab."
        if runs:
            hint = f"Type the directory of a run: {some(runs)}."
        raise StoreError(f"{error} {hint}") from error
    config = configuration(directory)
    facts = Tasks().facts(config)
    now = identity(config, facts.data_hash)
    if now != found.id or not directory.name.endswith(f"-{now}"):
        raise StoreError(
            f"{directory}: was run {found.id}, and would now be {now}: a part's source, the data "
            f"or the directory's name has changed. Start anew: {found.reproduce}"
        )
    cell = Cell(
        id=now,
        slug=directory.name.removesuffix(f"-{now}"),
        label=found.label,
        overrides=tuple(found.overrides),
        seed=config.seed,
        tree=plain(config),
        parameters=found.parameters or 0,
        parts=part_versions(config),
        data_hash=facts.data_hash,
        task=facts.about,
        reproduce=found.reproduce,
        git=git.state(),
    )
    return directory.parent, cell
