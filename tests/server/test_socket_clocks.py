"""A live socket with every clock of the server shortened: it lives as long as its own rules say, and leaves nothing."""

import asyncio
import gc
import logging

import httpx
import pytest
from vivavoce_server import ServerConfig
from vivavoce_server.uvicorn_sockets import TimedHttp, TimedWebSocket

from tests.server.test_slow_clients import client_of
from tests.support.live_server import Gate, fake_engine, live_server
from tests.support.live_socket import dial, pcm_of
from tests.support.waiting import wait_until

SHORT_S = 0.2
MANY_CLOCKS_S = 6 * SHORT_S
CLOCKS = ("HEAD_S", "BODY_S", "PING_INTERVAL_S", "ABORT_S")


@pytest.fixture
def short_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CLOCKS:
        monkeypatch.setattr(f"vivavoce_server.uvicorn_sockets.{name}", SHORT_S)
    monkeypatch.setattr("vivavoce_server.uvicorn_sockets.PING_TIMEOUT_S", 2 * SHORT_S)
    monkeypatch.setattr("vivavoce_server.live.connection.FIRST_MESSAGE_S", SHORT_S)


SETTINGS = ServerConfig(max_wait_s=SHORT_S, stall_s=SHORT_S, live_stall_s=SHORT_S, live_idle_s=2 * MANY_CLOCKS_S)


async def test_a_socket_that_keeps_its_rules_outlives_every_clock(
    short_clocks: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "vivavoce_server")
    with live_server(config=SETTINGS) as server:
        async with dial(server) as socket:
            await asyncio.sleep(MANY_CLOCKS_S)  # silent after it has dialled
            await socket.configure()
            await asyncio.sleep(MANY_CLOCKS_S)  # idle
            await socket.say("He said ")
            await socket.expect("audio.start")
            await asyncio.sleep(MANY_CLOCKS_S)  # with an open utterance
            await socket.say("no.")
            await socket.send("input.done")
            assert (await socket.rest())[0] == pcm_of(5, len("He said no."))
            await socket.send("session.close")
            await socket.expect("session.done")
            assert await socket.close_code() == 1000
        await asyncio.sleep(MANY_CLOCKS_S)
    # A busy machine delays the event loop, which is told too.
    assert [record.msg for record in caplog.records if record.name != "vivavoce_server.loop_watch"] == []


async def test_closed_sockets_leave_no_protocol_behind(short_clocks: None) -> None:
    def protocols() -> int:
        gc.collect()
        # The types alone are looked at: isinstance would ask some objects of torch, which then warn.
        return sum(issubclass(type(thing), TimedHttp | TimedWebSocket) for thing in gc.get_objects())

    with live_server(config=SETTINGS) as server:
        before = protocols()
        for _ in range(5):
            async with dial(server) as socket:
                await socket.configure()
        await asyncio.to_thread(wait_until, lambda: protocols() <= before)


async def test_a_ping_is_not_missed_while_the_server_is_busy_with_a_message(
    short_clocks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*_: object) -> None:
        await asyncio.sleep(MANY_CLOCKS_S)

    with live_server(config=SETTINGS) as server:
        async with dial(server) as socket:
            await socket.configure()
            monkeypatch.setattr("vivavoce_server.live.websocket.SpeechStream.handle", slow)
            await socket.say("one", "two")
            await asyncio.sleep(1.5 * MANY_CLOCKS_S)
            monkeypatch.undo()
            await asyncio.sleep(MANY_CLOCKS_S)
            await socket.say("Hi!")
            await socket.send("input.done")
            assert (await socket.utterance()).audio == pcm_of(5, 3)


def test_the_body_clock_runs_for_a_request_that_came_with_the_one_before(short_clocks: None) -> None:
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
    with live_server(config=SETTINGS) as server, client_of(server) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + head)
        heard = b""
        while piece := slow.recv(2**16):
            heard += piece
        assert heard.startswith(b"HTTP/1.1 200")
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_speech_that_breaks_off_resets_a_connection_without_chunks() -> None:
    """HTTP/1.0 has no end of a body but the connection's, so a proper end would say that the speech is complete."""
    gate = Gate(hold_from_step=3)
    engine = fake_engine(before_step=gate)
    with live_server(engine) as server, client_of(server) as client:
        body = b'{"input": "Hello there, you.", "voice": "heart", "response_format": "pcm", "seed": 5}'
        head = (
            f"POST /v1/audio/speech HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        client.sendall(head.encode() + body)
        heard = client.recv(2**16)
        assert heard.startswith(b"HTTP/1.1 200")
        gate.open()
        engine.stop()
        with pytest.raises(ConnectionResetError):  # noqa: PT012 (the bytes before the reset are read too)
            while piece := client.recv(2**16):
                heard += piece
        content = heard.partition(b"\r\n\r\n")[2]
        assert content
        assert pcm_of(5, 17).startswith(content)
