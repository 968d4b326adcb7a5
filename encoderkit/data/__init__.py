"""The door for task authors.

A task derives from `Task` and returns `Batch`es; `draws(split, k)` gives it a fresh generator for
each, so that a batch is a pure function of (seed, split, k).
"""

from encoderkit.data.build import build_task
from encoderkit.data.corruption import corrupt
from encoderkit.data.order import epoch_rows
from encoderkit.data.task import Batch, Task, content_hash
from encoderkit.errors import InputError

__all__ = ["Batch", "InputError", "Task", "build_task", "content_hash", "corrupt", "epoch_rows"]
