"""Waits for another thread or process. The deadline only ends a test that would hang for ever."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
HUNG_S = 60.0
"""Deadline in seconds, far beyond any wait, even on a busy machine."""


def wait_until(condition: Callable[[], bool], timeout_s: float = HUNG_S, pause_s: float = 0.005) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(pause_s)


async def soon(awaitable: Awaitable[T]) -> T:
    """The result of something that should not take long."""
    return await asyncio.wait_for(awaitable, HUNG_S)


async def until(condition: Callable[[], bool]) -> None:
    """Lets the event loop go on until a condition holds, which another thread or process may bring about."""
    async with asyncio.timeout(HUNG_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
