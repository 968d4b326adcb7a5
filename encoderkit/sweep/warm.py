"""What the warm server imports, once, so that each of its forks need not; importing this does it.

None of these modules computes anything or loads a plugin when imported.
"""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import sys

MODULES = (
    "torch",
    "encoderkit.sweep.run",
    "encoderkit.sweep.watch",
    "encoderkit.nn.build",
    "encoderkit.data.build",
    "encoderkit.train.loop",
    "torch._dynamo",  # what torch imports at an optimizer's first step: 1.4 s in every process
)


class Leash:
    """An import hook that finds nothing, and ends the process once its parent is gone.

    The imports take seconds, in which a server does not yet hear of its runner's death.
    """

    def __init__(self) -> None:
        self._parent = os.getppid()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Look at the parent, and leave the import to others."""
        if os.getppid() != self._parent:
            os._exit(1)


def load() -> None:
    """Import all of it on a leash."""
    leash = Leash()
    sys.meta_path.insert(0, leash)
    try:
        for name in MODULES:
            importlib.import_module(name)
    finally:
        sys.meta_path.remove(leash)


def settle() -> None:
    """Behave as the runner's server, where this process is one.

    Ctrl-C is the runner's to hear, during these imports too. A server that has lost its runner
    goes at once: to clear torch away would take it a second.
    """
    if any("multiprocessing.forkserver" in word for word in sys.orig_argv):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        atexit.register(os._exit, 0)


settle()
load()
