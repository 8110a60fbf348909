"""Watches the event loop: a late heartbeat is measured, and the request that delays it is named in the log.

All clients share one event loop, so work that keeps it from its next callback keeps everybody waiting. A heartbeat on
the loop measures how late it runs. A thread looks whether the heartbeat is late now, and then finds the callback that
the loop's thread is in. The thread costs nothing to the loop: it wakes 40 times a second and compares two numbers.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from types import FrameType

from prometheus_client import Histogram

log = logging.getLogger(__name__)

BEAT_S = 0.025
"""Seconds between two heartbeats, and between two looks at them."""
LATE_S = 0.05
"""Delay of a heartbeat from which the log tells of it."""
LOG_EVERY_S = 1.0
activity: ContextVar[str] = ContextVar("activity", default="")
"""Method or protocol, and path, of the request that the current task serves."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """Work of the loop's thread: the context of its callback, None between callbacks, and the line it is at."""

    context: Context | None
    place: str


def find_culprit(frame: FrameType) -> Culprit:
    """The callback that a loop's thread is in. `frame` is the thread's innermost frame."""
    code = frame.f_code
    place = f"{code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"
    outer: FrameType | None = frame
    while outer is not None:
        if outer.f_code is asyncio.Handle._run.__code__:
            handle = outer.f_locals["self"]  # None once the callback has ended
            return Culprit(handle and handle._context, place)
        outer = outer.f_back
    return Culprit(None, place)


class LoopWatch:
    """Watches one event loop while its block runs: `async with LoopWatch(histogram).running()`."""

    def __init__(self, lag_s: Histogram, clock: Callable[[], float] = time.monotonic) -> None:
        self._lag_s = lag_s
        self._clock = clock
        self._due_s = clock() + BEAT_S
        self._thread_id = 0
        self._logged_s = -LOG_EVERY_S
        self._looking = threading.Lock()
        self._over = threading.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watches the running loop until the block ends."""
        self._thread_id = threading.get_ident()
        self._over.clear()
        self._due_s = self._clock() + BEAT_S
        beating = asyncio.create_task(self._beat_for_ever())
        thread = threading.Thread(target=self._look_for_ever, name="vivavoce-loop-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            beating.cancel()
            self._over.set()
            thread.join()

    async def _beat_for_ever(self) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._due_s - self._clock()))
            self.beat()

    def beat(self) -> None:
        """Measures the delay of a heartbeat, on the loop."""
        now_s = self._clock()
        self._lag_s.observe(max(0.0, now_s - self._due_s))
        self._due_s = now_s + BEAT_S

    def _look_for_ever(self) -> None:
        while not self._over.wait(BEAT_S):
            self.look()

    def look(self) -> None:
        """Logs a heartbeat that is late now, at most once a second. Call it on another thread than the loop's."""
        with self._looking:
            now_s = self._clock()
            late_s = now_s - self._due_s
            if late_s < LATE_S or now_s - self._logged_s < LOG_EVERY_S:
                return
            frame = sys._current_frames().get(self._thread_id)
            if frame is None:
                return
            culprit = find_culprit(frame)
            self._logged_s = now_s
        if culprit.context is None:
            log.debug("the event loop is late by %.3f s; another thread or process has the processor", late_s)
            return
        # In a copy of its context, so that the line has its request id.
        context = culprit.context.copy()
        context.run(_log_late, late_s, context.get(activity, "") or "no request", culprit.place)


def _log_late(late_s: float, activity: str, place: str) -> None:
    fields = {"late_s": round(late_s, 3), "activity": activity, "place": place}
    message = "the event loop is late by %(late_s)s s; %(activity)s is at %(place)s"
    log.warning(message, fields, extra={"fields": fields})
