"""Timing of calls on a device. Every benchmark of kernels uses it."""

import statistics
from collections.abc import Callable

import torch

WARM_UP_CALLS = 3


def median_ms(call: Callable[[], object], repeats: int = 20) -> float:
    """Median milliseconds of consecutive calls, each between two events on the current stream."""
    for _ in range(WARM_UP_CALLS):
        call()
    torch.cuda.synchronize()
    times_ms: list[float] = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        end.synchronize()
        times_ms.append(begin.elapsed_time(end))
    return statistics.median(times_ms)
