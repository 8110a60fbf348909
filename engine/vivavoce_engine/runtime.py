"""Settings of Python, PyTorch and the system for one process or thread. Imports no torch."""

import gc
import logging
import os
import sys
import threading
from contextlib import suppress

log = logging.getLogger(__name__)

NICENESS = 10
"""Of a thread whose work may wait."""
ALLOCATOR_VARIABLES = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}
"""The second is the first's old name."""


def freeze_gc() -> None:
    """Has later collections look at nothing that lives now: modules, models, routes. To be called once a process has
    loaded what it serves.

    A full collection of a process that has imported torch walks some hundred thousand objects, which takes 55 to 80 ms
    and holds up every listener; without these it takes 1 ms.
    """
    gc.collect()
    gc.freeze()
    log.info("%d objects are left out of garbage collection", gc.get_freeze_count())


def lower_thread_priority() -> None:
    """Lets the engine's thread go first. Only Linux counts niceness by thread."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def use_expandable_segments() -> None:
    """Has PyTorch give a GPU's memory back that loading a model left between what stays, unless the user has set its
    allocator up. To be called before torch is imported."""
    if not ALLOCATOR_VARIABLES & os.environ.keys():
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
