"""Settings of Python, PyTorch and the operating system for the current process or thread. Torch-free."""

import gc
import logging
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

NICENESS = 10
"""Niceness of a thread whose work may wait."""
KERNEL = Path("/proc/sys/kernel/osrelease")
ALLOCATOR_VARIABLES = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}
"""The setting's name, and its name in older versions of PyTorch."""


def freeze_gc() -> None:
    """Excludes all objects that exist now from garbage collection. Call it once a process has loaded all it serves.

    A full collection in a process that has imported torch visits several hundred thousand objects (modules, models,
    routes). That takes 55 to 80 ms, during which no listener gets audio. Without those objects it takes 1 ms.
    """
    gc.collect()
    gc.freeze()
    log.info("%d objects are left out of garbage collection", gc.get_freeze_count())


def lower_thread_priority() -> None:
    """Lowers the current thread's priority below the engine's. Only Linux has a niceness per thread."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def is_wsl(kernel: Path = KERNEL) -> bool:
    """True inside the Windows Subsystem for Linux. `kernel`: the file with the kernel's release."""
    try:
        return "microsoft" in kernel.read_text(encoding="utf-8").lower()
    except OSError:
        return False


def use_expandable_segments(kernel: Path = KERNEL) -> None:
    """Lets PyTorch return the GPU memory that loading a model leaves unused between the tensors that stay.

    A setting of the user's is kept. Call this before torch is imported. Under WSL2 PyTorch is left as it is: with
    expandable segments several users saw CUDA fail there at its first allocation (PyTorch's issues 182286 and 192330).
    """
    if not ALLOCATOR_VARIABLES & os.environ.keys() and not is_wsl(kernel):
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
