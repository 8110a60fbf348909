"""Settings of Python, PyTorch and the operating system for the current process or thread. Torch-free."""

import ctypes
import gc
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

NICENESS = 10
"""Niceness of a thread whose work may wait."""
PROGRESS_EVERY_S = 2.0
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


def return_freed_memory() -> None:
    """Gives memory that was freed back to the operating system. glibc keeps what large weights were packed through:
    400 MB of the released 0.6B. Other systems and C libraries are left as they are."""
    if sys.platform != "linux":  # without a name, Windows opens no library
        return
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def omp_threads() -> int | None:
    """The most threads that OMP_NUM_THREADS allows. None if it is not set, or is no number above 0."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # one number for each nested level
    return int(first) or None if first.isdecimal() else None


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


class Progress:
    """The progress of `total` pieces of work, as log lines with a percentage, at most one every PROGRESS_EVERY_S."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._done = 0
        self._started_s = self._told_s = time.monotonic()

    def advance(self) -> None:
        """Counts a piece of work as done. The last one always gets a line."""
        self._done += 1
        now_s = time.monotonic()
        if self._done < self._total and now_s - self._told_s < PROGRESS_EVERY_S:
            return
        self._told_s = now_s
        percent = 100 * self._done // self._total
        seconds = now_s - self._started_s
        log.info("%s: %d of %d (%d %%), %.1f s", self._what, self._done, self._total, percent, seconds)
