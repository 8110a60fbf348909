"""Caches of rows take the memory of the positions that are written, and no more."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from vivavoce_engine.cpu.packing import address, sparse


def own_kb() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def test_a_cache_is_writable_zeros_at_the_beginning_of_a_page() -> None:
    cache = sparse((3, 5, 7))
    assert (cache.shape, cache.dtype, address(cache) % 4096) == ((3, 5, 7), np.dtype(np.float32), 0)
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
