"""The end of a server: requests that outlive the grace time get an error, and a second signal ends it at once."""

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from vivavoce_server import ServerConfig, create_app
from vivavoce_server.draining import DrainingServer
from vivavoce_server.listeners import bind
from vivavoce_server.uvicorn_sockets import TimedWebSocket, connection_options

from tests.server.test_cli import SPEECH_BODY, address_of, raw_request
from tests.support.broken import broken_text_of
from tests.support.live_server import LiveServer, fake_engine
from tests.support.live_socket import dial
from tests.support.server_process import serving
from tests.support.texts import plain_text
from tests.support.waiting import HUNG_S, wait_until

BODY = {"input": plain_text(900), "voice": "heart", "response_format": "pcm"}
STEP_S = 0.01
"""Such a text takes 9 s."""


@contextmanager
def impatient_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LiveServer, DrainingServer]]:
    """A server without any grace."""
    monkeypatch.setattr("vivavoce_server.draining.CLOSE_CONNECTIONS_S", 20)
    config = ServerConfig(grace_s=0)
    engine = fake_engine(step_s=STEP_S)
    app = create_app(engine, config)
    started = threading.Event()
    server = DrainingServer(app, config, started.set)
    listener = bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    engine.start()
    thread.start()
    try:
        assert started.wait(HUNG_S)
        yield LiveServer(f"http://127.0.0.1:{listener.getsockname()[1]}", engine, app.state.service), server
    finally:
        server.handle_exit(signal.SIGTERM, None)
        thread.join(HUNG_S)
        engine.stop()
        assert not thread.is_alive()


async def test_each_kind_of_listener_is_told_that_it_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with impatient_server(monkeypatch) as (server, running):
        url = f"{server.url}/v1/audio/speech"
        async with httpx.AsyncClient(timeout=HUNG_S) as client, dial(server) as live:
            await live.configure()
            await live.say("Hello there ")
            await live.expect("audio.start")
            await live.audio()
            whole = asyncio.create_task(client.post(url, json={**BODY, "stream": False}))
            async with (
                client.stream("POST", url, json={**BODY, "stream_format": "sse"}) as events,
                client.stream("POST", url, json=BODY) as streamed,
            ):
                await asyncio.to_thread(wait_until, lambda: server.engine.stats().running == 4)
                running.handle_exit(signal.SIGTERM, None)

                text = await broken_text_of(events)
                assert '"type":"speech.audio.delta"' in text
                last = text.rstrip().rsplit("\r\n\r\n", 1)[-1]
                assert last.startswith("event: speech.audio.error")
                assert '"not_serving"' in last
                with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
                    await streamed.aread()
            refused = await whole
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_serving")
            assert int(refused.headers["retry-after"]) >= 1
            assert await live.close_code() == 1013


async def test_idle_sockets_are_told_by_the_signal(tmp_path: Path) -> None:
    with serving(tmp_path, "--model", "fake", "--grace-s", "3600") as (process, url):
        async with dial(url) as silent, dial(url) as idle, dial(url) as speaking:
            await idle.configure()
            await speaking.configure()
            await speaking.say("He said ", "it ")
            await speaking.expect("audio.start")
            process.send_signal(signal.SIGTERM)
            for socket in (silent, idle):
                assert (await socket.error())["code"] == "not_serving"
                assert await socket.close_code() == 1013
            assert process.poll() is None
            await speaking.say("no.")
            await speaking.send("input.done")
            await speaking.rest()
            assert await speaking.close_code() == 1013
        assert process.wait(timeout=HUNG_S) == 0


HANDSHAKE = (
    b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


async def handshake(host: str, port: int) -> bytes:
    """The head of the answer to a live socket's handshake."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(HANDSHAKE % b"/v1/audio/speech/stream")
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 101")
    return head


async def test_a_handshake_that_the_end_catches_is_refused_and_no_fault() -> None:
    """The app answers a handshake at once, so here it never comes to that."""

    caught = asyncio.Event()

    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        caught.set()
        await asyncio.Event().wait()

    config = uvicorn.Config(silent, **connection_options(ServerConfig()))
    config.load()
    state = uvicorn.Server(config).server_state
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: TimedWebSocket(config, state, {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(HANDSHAKE % b"/")
    await caught.wait()
    (connection,) = state.connections
    connection.shutdown()
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"Retry-After: 5\r\n" in answer
    assert answer.endswith(b"The server is stopping\n")
    for task in state.tasks:
        task.cancel()
    writer.close()
    server.close()


async def test_sockets_that_come_during_the_drain_are_told(tmp_path: Path) -> None:
    with serving(tmp_path, "--model", "fake", "--grace-s", "3600") as (process, url):
        async with dial(url) as speaking:
            await speaking.configure()
            await speaking.say("He said ", "it ")
            await speaking.expect("audio.start")
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(wait_until, lambda: httpx.get(f"{url}/ready").status_code == 503)
            assert b"connection: close" not in (await handshake(*address_of(url))).lower()
            async with dial(url) as late:
                assert (await late.error())["code"] == "not_serving"
                assert await late.close_code() == 1013
            await speaking.send("input.done")
            await speaking.rest()
        assert process.wait(timeout=HUNG_S) == 0


def test_connections_are_not_kept_during_the_drain(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--model", "fake", "--grace-s", "3600") as (process, url),
        socket.create_connection(address_of(url)) as reader,
        httpx.Client() as kept,
    ):
        reader.sendall(raw_request(SPEECH_BODY))
        assert reader.recv(12) == b"HTTP/1.1 200"
        assert "connection" not in kept.get(f"{url}/ready").headers
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{url}/ready").status_code == 503)
        assert kept.get(f"{url}/ready").headers["connection"] == "close"
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=HUNG_S)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--model", "fake", "--grace-s", "3600") as (process, url),
        socket.create_connection(address_of(url)) as reader,
    ):
        reader.sendall(raw_request(SPEECH_BODY))
        assert reader.recv(12) == b"HTTP/1.1 200"
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{url}/ready").status_code == 503)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=HUNG_S)
