"""Threads that compute a model on a CPU. Torch-free.

A core that two threads share computes no faster than for one, and waiting threads spin a little, so `auto` counts
cores, not hardware threads, and only those that this process may use.
"""

import ctypes
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vivavoce_engine.config import EngineConfig, NumberOrAuto
from vivavoce_engine.runtime import omp_threads

SMALL_HIDDEN_SIZE = 1024
"""Least width of a talker whose matrices are worth sharing among threads. A second thread makes the shipped voice
slower, but one beside it decodes while it makes the next frame."""
SMALL_THREADS = 2
"""Threads of a small model with `auto`. The server has use for further cores."""
ROWS_BESIDE = 16
"""Rows of a small model with a thread for Code2Wav. On two cores, none of 16 listeners over HTTP runs dry."""
CPUS = Path("/sys/devices/system/cpu")
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads of a model: those that share each product, and those that decode beside them."""

    together: int
    beside: int

    @property
    def total(self) -> int:
        return self.together + self.beside

    @property
    def rows_each_alone(self) -> int:
        """Least rows of a call of Code2Wav that are decoded by a thread each. Fewer rows share all threads in turn.

        Many threads share one row's products badly: measured on 16, one row takes a fourth of what it takes on one.
        """
        return 1 if self.beside else max(2, -(-self.together // 2))

    @property
    def decoders(self) -> int:
        """Threads that may decode a row each, the one that makes the frames left out."""
        return self.beside or self.together - 1

    def __str__(self) -> str:
        count = f"{self.total} thread{'s' * (self.total > 1)}"
        return f"{count}, {self.beside} of them for Code2Wav" if self.beside else count


def share_out(threads: NumberOrAuto, hidden_size: int) -> Threads:
    """Returns what the threads of a model do whose talker has this width.

    Those of a wide model share every product. A small model's matrices are not worth sharing, so one of its threads
    makes the frames, and the others decode them. OMP_NUM_THREADS caps `auto`.
    """
    if hidden_size >= SMALL_HIDDEN_SIZE:
        return Threads(threads_for(threads, hidden_size), 0)
    count = min(SMALL_THREADS, usable_cores(), omp_threads() or SMALL_THREADS) if threads == "auto" else threads
    return Threads(1, count - 1)


def on_threads(config: EngineConfig, threads: Threads) -> EngineConfig:
    """Returns the settings of the CPU's kernels with numbers for `auto`: threads, and rows for what they can speak.

    A row is decoded by one thread at a time, so no more of them than rows are beside the frames. Each has 9 MB.
    """
    rows = config.rows
    if config.max_streams == "auto" and threads.beside:
        rows = ROWS_BESIDE
    return replace(config, threads=threads.together + min(threads.beside, rows), max_streams=rows)


def threads_for(threads: NumberOrAuto, hidden_size: int) -> int:
    """Returns the threads that share a product of a model whose talker has this width, the caller's included.

    OMP_NUM_THREADS caps `auto`.
    """
    if threads != "auto":
        return threads
    count = 1 if hidden_size < SMALL_HIDDEN_SIZE else usable_cores()
    return min(count, omp_threads() or count)


def usable_cores() -> int:
    """Returns the cores that this process may use, by its affinity and its container's CPU time; at least 1."""
    return max(1, min(_physical_cores(), _quota()))


def _physical_cores(cpus: Path = CPUS) -> int:
    if sys.platform == "darwin":
        return _fast_cores()
    if sys.platform != "linux":
        return max(1, (os.cpu_count() or 1) // 2)  # two hardware threads a core, as most have
    allowed = os.sched_getaffinity(0)
    try:
        return len({(cpus / f"cpu{cpu}/topology/thread_siblings_list").read_text() for cpu in allowed})
    except OSError:  # a sandbox may hide them
        return len(allowed)


def _fast_cores() -> int:
    """The performance cores of a Mac. One thread on a slow core would let all others wait for it."""
    count = ctypes.c_int32(0)
    size = ctypes.c_size_t(ctypes.sizeof(count))
    with suppress(OSError, AttributeError):
        system = ctypes.CDLL(None)
        if system.sysctlbyname(b"hw.perflevel0.physicalcpu", ctypes.byref(count), ctypes.byref(size), None, 0) == 0:
            return count.value
    return os.cpu_count() or 1


def _quota(folder: Path = CGROUP) -> int:
    """The CPU time of the container in cores, rounded down; a large number without a limit."""
    with suppress(OSError, ValueError):  # cgroup v2
        quota, period = (folder / "cpu.max").read_text().split()
        return sys.maxsize if quota == "max" else max(1, int(quota) // int(period))
    with suppress(OSError, ValueError):  # cgroup v1
        quota_us = int((folder / "cpu/cpu.cfs_quota_us").read_text())
        period_us = int((folder / "cpu/cpu.cfs_period_us").read_text())
        return sys.maxsize if quota_us <= 0 else max(1, quota_us // period_us)
    return sys.maxsize
