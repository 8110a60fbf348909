"""Limits that the decoder process sets for itself, so that no file costs more than a recording can. Torch-free.

The needs of real recordings (10 MiB, 31 s, up to 192 kHz) are 75 MB of memory and 0.5 s of a processor.
"""

import errno
import math
import os
import resource
import time

MEMORY_BYTES = 256 * 2**20
"""Address space that the process may take for files, on top of what it takes without one (65 MB of it resident)."""
CPU_S = 10.0
"""Time of a processor that one file may take."""
OPEN_FILES = 32
"""Files that the process may have open. Decoding opens none."""


def limit_process() -> None:
    """Sets the limits that hold for the life of the process. No core is dumped and no file is written."""
    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_FSIZE, 0)
    lower(resource.RLIMIT_NOFILE, OPEN_FILES)
    if (taken_bytes := address_space_bytes()) is not None:
        lower(resource.RLIMIT_AS, taken_bytes + MEMORY_BYTES)


def limit_time() -> None:
    """Sets the time of the next file, counted from what the process has used so far. The system kills it after that."""
    lower(resource.RLIMIT_CPU, math.ceil(time.process_time() + CPU_S))


def address_space_bytes() -> int | None:
    """Size of this process's address space; None on a system that does not tell, where no limit on it is set."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def is_out_of_memory(error: BaseException) -> bool:
    """True if an error of Python or of FFmpeg says that an allocation has failed."""
    return isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM


def lower(kind: int, most: int) -> None:
    """Sets a limit of this process, but never above the hard limit that it was given."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
