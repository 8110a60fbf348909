"""Caches of rows take the memory of the positions that are written, and no more."""

import ctypes
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from vivavoce_engine.cpu.packing import address, sparse


def own_kb() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def test_a_cache_is_writable_zeros_at_the_beginning_of_a_cache_line() -> None:
    cache = sparse((3, 5, 7))
    assert (cache.shape, cache.dtype, address(cache) % 64) == ((3, 5, 7), np.dtype(np.float32), 0)
    assert not cache.any()
    cache[1] = 2
    assert cache.sum() == 2 * 5 * 7


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's files")
def test_a_row_s_first_positions_take_no_large_pages() -> None:
    """64 layers with 4 MB each: 64 KB are written in each, which numpy's own arrays would round up to 2 MB."""
    cache = sparse((64, 1024, 1024))
    before_kb = own_kb()
    cache[:, :16] = 1
    assert own_kb() - before_kb < 64 * 512


TOUCH = """
import ctypes, sys
from vivavoce_engine.cpu.packing import address, sparse

cache = sparse((3, 256, 16))
cache[:] = 1
print(cache.sum(), flush=True)
floats = (ctypes.c_float * 1).from_address(address(cache) + int(sys.argv[1]))
if sys.argv[2] == "write":
    floats[0] = 1
else:
    floats[0]
print("lived")
"""


@pytest.mark.skipif(os.name != "posix", reason="other systems have no page that nobody may touch")
@pytest.mark.parametrize("kind", ["read", "write"])
@pytest.mark.parametrize("at", [3 * 256 * 16 * 4, -4], ids=["behind", "before"])
def test_an_overrun_of_a_cache_ends_the_process(at: int, kind: str) -> None:
    done = subprocess.run([sys.executable, "-c", TOUCH, str(at), kind], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("12288.0\n", -signal.SIGSEGV)


def test_the_last_float_of_a_cache_is_within_it() -> None:
    cache = sparse((3, 256, 16))
    ctypes.c_float.from_address(address(cache) + cache.nbytes - 4).value = 2
    assert cache[2, 255, 15] == 2
