"""Clients that send or read next to nothing: others lose nothing, and held resources are freed in bounded time."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from vivavoce_engine import EngineConfig
from vivavoce_server import ServerConfig
from vivavoce_server.uvicorn_sockets import READ_BYTES, TimedWebSocket

from tests.server.test_cli import read_all
from tests.server.test_metrics import scrape
from tests.support.live_server import LiveServer, fake_engine, live_server
from tests.support.live_socket import dial, pcm_of
from tests.support.texts import plain_text
from tests.support.waiting import HUNG_S, wait_until

LONG = {"input": plain_text(4000), "voice": "heart", "response_format": "pcm", "seed": 5}
"""15 MB of audio: more than the buffers of sockets and engine."""
SHORT = {**LONG, "input": "Hi!"}
RECEIVE_BUFFER_BYTES = 2**14


@contextmanager
def client_of(server: LiveServer) -> Iterator[socket.socket]:
    """A bare socket with little room for what it does not read."""
    url = httpx.URL(server.url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        client.settimeout(HUNG_S)
        client.connect((url.host, url.port or 80))
        yield client


def ask(client: socket.socket, body: dict[str, object]) -> None:
    content = json.dumps(body).encode()
    head = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)


def is_idle(server: LiveServer) -> bool:
    stats = server.engine.stats()
    return stats.running == stats.queued == server.service.speaking == 0


STALL_S = 0.2


@pytest.mark.parametrize("fields", [{}, {"stream_format": "sse"}, {"response_format": "wav"}])
def test_a_reader_that_stops_rests_its_row_and_others_go_on(fields: dict[str, str]) -> None:
    engine = fake_engine(EngineConfig(max_unread_s=10))
    with live_server(engine) as server, client_of(server) as slow:
        ask(slow, {**LONG, **fields})
        wait_until(lambda: engine.stats().running == 1)
        # It rests: steps go by without another frame of it.
        made = -1
        while made != (made := engine.stats().frames):
            response = httpx.post(f"{server.url}/v1/audio/speech", json=SHORT)
            assert response.content == pcm_of(5, 3)
            made += 3
        assert 0 < engine.stats().running <= 2
        assert made < 4000 + 3 * 1000
        assert not is_idle(server)
        slow.close()
        wait_until(lambda: is_idle(server))


@pytest.mark.parametrize("fields", [{}, {"stream_format": "sse"}, {"stream": False}])
def test_a_reader_that_stops_is_dropped_after_a_while(fields: dict[str, object]) -> None:
    with live_server(config=ServerConfig(stall_s=STALL_S)) as server, client_of(server) as slow:
        ask(slow, {**LONG, **fields})
        wait_until(lambda: server.service.speaking == 1)
        wait_until(lambda: is_idle(server))
        time.sleep(5 * STALL_S)  # a whole answer is no speech any more while it is sent; nor may it be read yet
        heard = read_all(slow)
        assert heard.startswith(b"HTTP/1.1 200")
        assert not heard.endswith(b"0\r\n\r\n")
        assert len(heard) < 4000 * 1920 * 2
        if "stream" not in fields:
            assert scrape(server)["vivavoce_requests_total", "disconnected"] == 1


def test_a_reader_that_is_slow_but_steady_gets_all() -> None:
    """No faster than it takes: over many times the patience, a little at a time."""
    with live_server(config=ServerConfig(stall_s=0.5)) as server, client_of(server) as slow:
        ask(slow, {**LONG, "input": plain_text(400)})
        heard = b""
        while not heard.endswith(b"0\r\n\r\n"):
            piece = slow.recv(2**14)
            assert piece, "it was cut off"
            heard += piece
            asyncio.run(asyncio.sleep(0.002))
        assert len(heard) > 400 * 1920 * 2


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /v1/aud",
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    ],
    ids=["nothing", "half a line", "half a head", "half a body"],
)
def test_a_request_that_does_not_arrive_is_given_up(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce_server.uvicorn_sockets.HEAD_S", 0.1)
    monkeypatch.setattr("vivavoce_server.uvicorn_sockets.BODY_S", 0.1)
    with live_server() as server, client_of(server) as slow:
        slow.sendall(sent)
        assert read_all(slow) == b""
        assert httpx.post(f"{server.url}/v1/audio/speech", json=SHORT).content == pcm_of(5, 3)


def test_a_request_that_trickles_in_does_not_start_the_clock_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce_server.uvicorn_sockets.HEAD_S", 0.3)
    with live_server() as server, client_of(server) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nX-Slow: ")
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):  # noqa: PT012 (it takes several)
            while True:
                slow.sendall(b"a")
                asyncio.run(asyncio.sleep(0.01))


def test_the_clock_stops_when_the_request_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests one after the other on one connection, speech that takes longer than a head may, and a live socket."""
    monkeypatch.setattr("vivavoce_server.uvicorn_sockets.HEAD_S", 0.2)
    monkeypatch.setattr("vivavoce_server.uvicorn_sockets.BODY_S", 0.2)
    with live_server(fake_engine(step_s=0.01)) as server, httpx.Client(base_url=server.url) as client:
        for _ in range(3):
            response = client.post("/v1/audio/speech", json={**LONG, "input": plain_text(40)})
            assert response.content == pcm_of(5, 40)


@pytest.mark.parametrize(
    "headers", [["Content-Length: 5"], ["Transfer-Encoding: chunked"], [f"X: {'x' * 9000}"], ["X: x"] * 130]
)
def test_a_handshake_that_cannot_be_one_is_answered_and_its_connection_closed(
    headers: list[str], server: LiveServer
) -> None:
    """Without an answer it would stay open for ever, before a key is asked for."""
    head = [
        "GET /v1/audio/speech/stream HTTP/1.1",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version: 13",
        *headers,
    ]
    with client_of(server) as client:
        client.sendall("\r\n".join([*head, "", ""]).encode())
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 400 ")
    _, _, body = answer.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in answer


async def test_pings_of_a_client_that_reads_nothing_have_one_answer() -> None:
    """The answer to the latest ping stands for those before it, so they take no memory."""
    pings = [f"{number:0100}".encode() for number in range(200)]
    with live_server() as server:
        async with dial(server) as socket:
            await socket.configure()
            [protocol] = [one for one in server.connections() if isinstance(one, TimedWebSocket)]
            loop = protocol.loop
            written: list[bytes] = []
            loop.call_soon_threadsafe(protocol.pause_writing)
            write = protocol.transport.write
            protocol.transport.write = written.append  # type: ignore[assignment, method-assign]
            for ping in pings:
                await socket.connection.ping(ping)
            await asyncio.to_thread(wait_until, lambda: pings[-1] in protocol._held_pong)
            assert written == []
            assert len(protocol._held_pong) < 2 * READ_BYTES
            protocol.transport.write = write  # type: ignore[method-assign]
            latest = await socket.connection.ping(b"the latest")
            await asyncio.to_thread(wait_until, lambda: protocol._held_pong.endswith(b"the latest"))
            loop.call_soon_threadsafe(protocol.resume_writing)
            async with asyncio.timeout(HUNG_S):
                await latest
            assert protocol._held_pong == b""
