"""The cell of an earlier run, read back from its directory."""

from __future__ import annotations

from pathlib import Path

import yaml

from encoderkit.config.check import check, plain
from encoderkit.config.identity import identity, part_versions
from encoderkit.errors import StoreError
from encoderkit.plugins import registry
from encoderkit.sweep import git, record
from encoderkit.sweep.cell import Cell
from encoderkit.sweep.draft import Tasks
from encoderkit.sweep.run import CONFIG_FILE


def recorded(directory: Path) -> tuple[Path, Cell]:
    """Return the results directory of a run, and the cell that it was.

    Errors: StoreError when the directory holds no run, or when its parts or data have changed;
    ConfigError when its configuration is no longer valid.
    """
    directory = directory.resolve()
    found = record.load(directory)
    try:
        tree = yaml.safe_load((directory / CONFIG_FILE).read_bytes())
    except (OSError, yaml.YAMLError) as error:
        raise StoreError(f"{directory / CONFIG_FILE}: cannot be read: {error}") from error
    config = check(tree if isinstance(tree, dict) else {}, registry())
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
