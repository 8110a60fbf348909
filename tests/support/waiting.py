"""Waits for another thread or process. The deadline only ends a test that would hang for ever."""

import time
from collections.abc import Callable

HUNG_S = 60.0
"""Deadline in seconds, far beyond any wait, even on a busy machine."""


def wait_until(condition: Callable[[], bool], timeout_s: float = HUNG_S, pause_s: float = 0.005) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(pause_s)
