"""From a configuration to its task."""

from __future__ import annotations

from encoderkit.config.schema import Config
from encoderkit.data.task import Task
from encoderkit.errors import EncoderkitError, PluginError

_DECLARED = ("vocab", "outputs", "trivial_loss", "baselines", "data_hash")


def build_task(config: Config) -> Task:
    """Return the task of a configuration, with its data loaded.

    Errors: PluginError when the task's class fails or does not say what a task must say.
    """
    entry = config.task.entry
    where = f"task={entry.part.name} ({entry.owner})"
    try:
        task = entry.load()(config.task.options, config.seed_data)
    except EncoderkitError:
        raise
    except Exception as error:
        raise PluginError(f"{where} failed: {type(error).__name__}: {error}") from error
    if not isinstance(task, Task):
        raise PluginError(f"{where}: {type(task).__name__} must derive from encoderkit.data.Task")
    if missing := [name for name in _DECLARED if not hasattr(task, name)]:
        raise PluginError(f"{where}: a task must set {', '.join(missing)}")
    return task
