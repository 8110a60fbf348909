"""The event loop is shared by all clients: its delay is measured, and no client keeps it from the others."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from types import FrameType, SimpleNamespace
from typing import cast

import httpx
import pytest
from prometheus_client import CollectorRegistry, Histogram
from vivavoce_server.errors import ApiError
from vivavoce_server.live.closing import Closing
from vivavoce_server.live.messages import EMPTY_PER_S, MAX_EMPTY, MAX_SIGNS, EmptyMessages, check_structure
from vivavoce_server.live.realtime_events import MAX_INPUT, MAX_INSTRUCTIONS_CHARS, MAX_PARTS, parse
from vivavoce_server.logs import RequestIdFilter, for_log, request_id
from vivavoce_server.loop_watch import BEAT_S, LATE_S, LOG_EVERY_S, LoopWatch, activity, find_culprit
from vivavoce_server.uvicorn_sockets import BODY_READ_BYTES, READ_BYTES, TimedHttp, TimedWebSocket
from websockets.exceptions import ConnectionClosed

from tests.support.live_server import live_server
from tests.support.live_socket import dial
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


def test_a_callback_that_has_just_ended_is_nobody_s() -> None:
    """asyncio drops a callback's handle before its frame ends."""
    frame = SimpleNamespace(f_code=asyncio.Handle._run.__code__, f_locals={"self": None}, f_lineno=1, f_back=None)
    assert find_culprit(cast("FrameType", frame)).context is None


def test_a_server_measures_its_loop_from_its_start_to_its_end() -> None:
    with live_server() as server:
        lag_s = server.service.metrics.event_loop_lag_s
        wait_until(lambda: values(lag_s)["vivavoce_event_loop_lag_seconds_count"] > 2)
        names = [thread.name for thread in threading.enumerate()]
        assert "vivavoce-loop-watch" in names
    assert "vivavoce-loop-watch" not in [thread.name for thread in threading.enumerate()]


# ---- messages


@pytest.mark.parametrize(
    ("message", "is_taken"),
    [
        ('{"type": "input.text", "text": "Hello, there: [you] {all}"}', True),
        ("[" * MAX_SIGNS, True),
        ("[" * (MAX_SIGNS + 1), False),
        ('{"x":[' + "[]," * 100_000 + "]}", False),
        ('{"x":[' + "1," * 100_000 + "1]}", False),
        ('{"speaker_embedding":[' + ",".join(['{"embedding":[' + "0.5," * 2047 + '1],"weight":1}'] * 16) + "]}", True),
        ('{"text":"' + ",:[{" * 30_000 + '"}', True),  # of a text, signs are text
        ('{"text":"' + '\\",' * 30_000 + '"}', True),
        ('{"text":"' + ",:[{" * 30_000, True),
        ('{"text":"' + ",:[{" * 30_000 + '","x":[' + "[]," * 100_000 + "]}", False),
        ('"' * 60_000 + "," * 60_000, False),
        ('{"ref_audio":"' + "A" * (4 * 2**20) + '"}', True),
        ('{"ref_audio":"' + "A," * (2 * 2**20) + '"}', False),  # no audio, and no text that is taken
        ("\\" * 200_000, True),
    ],
    ids=range(14),
)
def test_a_message_has_only_so_many_fields_and_elements(message: str, is_taken: bool) -> None:
    if is_taken:
        check_structure(message)
    else:
        with pytest.raises(Closing) as closing:
            check_structure(message)
        assert closing.value.code == 1009


@pytest.mark.parametrize(
    "path", ["/v1/audio/speech/stream", "/v1/text-to-speech/heart/stream-input", "/v1/realtime?model=fake"]
)
async def test_every_socket_counts_fields_before_it_parses(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.live_socket.PATH", path)
    with live_server() as server:
        async with dial(server) as socket:
            await socket.connection.send('{"type":"session.config","x":[' + "{}," * 100_000 + "{}]}")
            assert await socket.close_code() == 1009


def test_messages_without_text_are_counted() -> None:
    clock = Clock()
    empty = EmptyMessages(clock)
    for _ in range(MAX_EMPTY):
        assert empty.add() is None
    closing = empty.add()
    assert closing is not None
    assert closing.detail is not None
    assert (closing.code, closing.detail.code) == (1008, "too_many_empty_messages")
    clock.now_s = 1.0
    for _ in range(int(EMPTY_PER_S)):
        assert empty.add() is None
    assert empty.add() is not None


async def test_a_flood_of_empty_messages_is_refused_and_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce_server.live.messages.EMPTY_PER_S", 0.0)  # else a slow machine might keep up
    with live_server() as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.say("e" + "\u0301" * 20_000)
            with contextlib.suppress(ConnectionClosed):
                for _ in range(MAX_EMPTY + 1):
                    await socket.send("input.text", text="")
            assert await socket.close_code() == 1008
        async with httpx.AsyncClient(base_url=server.url) as client:
            speech = await client.post("/v1/audio/speech", json={"input": "Hi!", "voice": "heart"})
        assert speech.status_code == 200


async def test_a_connection_is_read_in_pieces_between_which_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A read of 256 KiB would be 40,000 of the shortest frames, which take a second."""
    received: list[int] = []
    data_received = TimedWebSocket.data_received

    def recorded(protocol: TimedWebSocket, data: bytes) -> None:
        received.append(len(data))
        data_received(protocol, data)

    monkeypatch.setattr(TimedWebSocket, "data_received", recorded)
    with live_server() as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.connection.send('{"type":"input.text","text":"' + "word " * 20_000 + '"}')
            await socket.send("input.cancel")
            await socket.send("session.close")
            assert await socket.close_code() == 1000
    assert sum(received) > 100_000
    assert max(received) <= READ_BYTES


def test_events_of_the_realtime_protocol_have_bounded_lists() -> None:
    parts = [{"type": "input_text", "text": "a"}] * (MAX_PARTS + 1)
    for fields in (
        {"type": "conversation.item.create", "item": {"type": "message", "content": parts}},
        {"type": "response.create", "response": {"input": [{"type": "message"}] * (MAX_INPUT + 1)}},
        {"type": "session.update", "session": {"instructions": "a" * (MAX_INSTRUCTIONS_CHARS + 1)}},
    ):
        with pytest.raises(ApiError) as refused:
            parse(fields)
        assert refused.value.status == 400


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_in_chunks_is_read_in_small_pieces(chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest chunks take as long as the shortest frames. A body of a known length is not parsed."""
    received: list[int] = []
    data_received = TimedHttp.data_received

    def recorded(protocol: TimedHttp, data: bytes) -> None:
        received.append(len(data))
        data_received(protocol, data)

    monkeypatch.setattr(TimedHttp, "data_received", recorded)
    body = b'{"input": "Hi!", "voice": "heart"' + b" " * 200_000 + b"}"

    async def in_one_chunk() -> AsyncIterator[bytes]:
        yield body

    with live_server() as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            headers = {"Content-Type": "application/json"}
            content = in_one_chunk() if chunked else body
            assert (await client.post("/v1/audio/speech", content=content, headers=headers)).status_code == 200
    assert sum(received) > len(body)
    assert max(received) <= (READ_BYTES if chunked else BODY_READ_BYTES)
