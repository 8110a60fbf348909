"""The event loop is shared by all clients: its delay is measured, and no client keeps it from the others."""

import asyncio
import logging
import threading

import pytest
from prometheus_client import CollectorRegistry, Histogram
from vivavoce_server.logs import RequestIdFilter, for_log, request_id
from vivavoce_server.loop_watch import BEAT_S, LATE_S, LOG_EVERY_S, LoopWatch, activity

from tests.support.live_server import live_server
from tests.support.waiting import HUNG_S, wait_until


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def histogram() -> Histogram:
    return Histogram("lag", "", buckets=(0.05, 1.0), registry=CollectorRegistry())


def values(lag_s: Histogram) -> dict[str, float]:
    (family,) = lag_s.collect()
    return {sample.name + sample.labels.get("le", ""): sample.value for sample in family.samples}


def test_a_heartbeat_measures_its_delay() -> None:
    clock, lag_s = Clock(), histogram()
    watch = LoopWatch(lag_s, clock)
    clock.now_s = BEAT_S
    watch.beat()
    clock.now_s = 2 * BEAT_S + 0.5
    watch.beat()
    clock.now_s = 3 * BEAT_S + 0.5
    watch.beat()
    found = values(lag_s)
    assert (found["lag_bucket0.05"], found["lag_bucket1.0"], found["lag_count"]) == (2, 3, 3)
    assert found["lag_sum"] == pytest.approx(0.5)


class Stuck:
    """A request that keeps its loop, on a thread of its own, until it is let go."""

    def __init__(self, watch: LoopWatch, name: str) -> None:
        self._watch, self._name = watch, name
        self._stuck, self._free = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        async with self._watch.running():
            await asyncio.create_task(self._request())

    async def _request(self) -> None:
        request_id.set(self._name)
        activity.set(for_log("POST /v1/x\ny"))
        self._stuck.set()
        assert self._free.wait(HUNG_S)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._stuck.wait(HUNG_S)

    def __exit__(self, *_: object) -> None:
        self._free.set()
        self._thread.join()


def test_the_request_that_keeps_the_loop_is_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    watch = LoopWatch(histogram(), clock)
    caplog.handler.addFilter(RequestIdFilter())
    with caplog.at_level(logging.WARNING, "vivavoce_server.loop_watch"), Stuck(watch, "id-7"):
        watch.look()
        assert caplog.messages == []
        clock.now_s = 2 * BEAT_S + LATE_S
        # The thread of the watch looks at the same clock, and may have been first.
        watch.look()
        wait_until(lambda: len(caplog.messages) == 1)
        watch.look()
        clock.now_s += 0.9 * LOG_EVERY_S
        watch.look()
        assert len(caplog.messages) == 1
        clock.now_s += LOG_EVERY_S
        watch.look()
        wait_until(lambda: len(caplog.messages) == 2)
    assert [record.__dict__["request_id"] for record in caplog.records] == ["id-7", "id-7"]
    first = caplog.messages[0]
    assert first.startswith("the event loop is late by 0.075 s; POST /v1/x\\ny is at ")
    assert "wait" in first


def test_a_server_measures_its_loop_from_its_start_to_its_end() -> None:
    with live_server() as server:
        lag_s = server.service.metrics.event_loop_lag_s
        wait_until(lambda: values(lag_s)["vivavoce_event_loop_lag_seconds_count"] > 2)
        names = [thread.name for thread in threading.enumerate()]
        assert "vivavoce-loop-watch" in names
    assert "vivavoce-loop-watch" not in [thread.name for thread in threading.enumerate()]
