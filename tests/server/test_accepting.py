"""A server that runs out of descriptors pauses, says so once a second, and goes on when connections go."""

import asyncio
import errno
import logging
import os
import resource
import socket
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest
from vivavoce_server import accepting
from vivavoce_server.accepting import Acceptor, most_connections
from vivavoce_server.logs import Throttle

from tests.support.live_server import LiveServer
from tests.support.server_process import launched, url_of
from tests.support.waiting import HUNG_S, wait_until
from tests.support.wire import connected

DESCRIPTORS = 64


def test_idle_connections_beyond_the_descriptors_cost_a_line_a_second(tmp_path: Path) -> None:
    with launched(tmp_path, "--model", "fake") as (process, address_file):
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        url = url_of(process, address_file)
        started_s = time.monotonic()
        with ExitStack() as idle:
            for _ in range(200):
                idle.enter_context(connected(url))
            wait_until(lambda: len(os.listdir(f"/proc/{process.pid}/fd")) > DESCRIPTORS // 2)
            assert len(os.listdir(f"/proc/{process.pid}/fd")) < DESCRIPTORS
        body = {"input": "Hi!", "voice": "heart", "response_format": "pcm"}
        answer = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=HUNG_S)
        assert answer.status_code == 200
        elapsed_s = time.monotonic() - started_s
        process.terminate()
        _, stderr = process.communicate(timeout=HUNG_S)
    told = [line for line in stderr.splitlines() if "connections are open" in line or "accepted" in line]
    assert told
    assert len(told) <= elapsed_s + 2
    assert "Traceback" not in stderr
    assert "a bug" not in stderr


async def test_no_descriptor_is_a_pause_and_no_loss(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vivavoce_server.accepting.PAUSE_S", 0.01)
    failures = 0

    class Failing(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            nonlocal failures
            failures += 1
            if failures <= 5:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    open_protocols: list[asyncio.Protocol] = []

    class Greeting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            open_protocols.append(self)
            transport.write(b"hello")

        def connection_lost(self, exc: Exception | None) -> None:
            open_protocols.remove(self)

    with Failing() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        running = asyncio.create_task(Acceptor(listener, Greeting, lambda: len(open_protocols), 1).run())
        async with asyncio.timeout(HUNG_S):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            waiting, later = await asyncio.open_connection(*listener.getsockname())
            assert await reader.read(5) == b"hello"
            assert len(open_protocols) == 1
            writer.close()
            assert await waiting.read(5) == b"hello"
            later.close()
            await asyncio.gather(writer.wait_closed(), later.wait_closed())
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert [message for message in caplog.messages if "no connection is accepted" in message] == caplog.messages[:1]


@pytest.mark.parametrize(("asked", "asks"), [(True, accepting.GIVE_WAY_TIMES), (False, 1)])
async def test_a_process_that_gives_way_takes_what_nobody_else_takes(asked: bool, asks: int) -> None:
    times: list[None] = []

    def gives_way() -> bool:
        times.append(None)
        return asked

    connected = asyncio.Event()

    class Connected(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            connected.set()

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        running = asyncio.create_task(Acceptor(listener, Connected, int, 9, gives_way=gives_way).run())
        with socket.create_connection(listener.getsockname()):
            await asyncio.wait_for(connected.wait(), HUNG_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert len(times) == asks


async def test_a_process_that_gives_way_leaves_a_connection_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "GIVE_WAY_S", HUNG_S)
    taken: asyncio.Queue[bool] = asyncio.Queue()

    def connect(gives_way: bool) -> asyncio.Protocol:
        taken.put_nowait(gives_way)
        return asyncio.Protocol()

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with listener.dup() as other:
            running = [
                asyncio.create_task(
                    Acceptor(each, partial(connect, gives), int, 9, gives_way=partial(bool, gives)).run()
                )
                for each, gives in ((listener, True), (other, False))
            ]
            with socket.create_connection(listener.getsockname()), socket.create_connection(listener.getsockname()):
                assert [await asyncio.wait_for(taken.get(), HUNG_S) for _ in range(2)] == [False, False]
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def test_a_throttle_tells_how_many_lines_it_left_out(caplog: pytest.LogCaptureFixture) -> None:
    times_s = iter((0.0, 0.3, 0.9, 1.0, 5.0))
    told = Throttle(logging.getLogger("a"), logging.WARNING, clock=lambda: next(times_s))
    for _ in range(5):
        told.tell("a %s", "line")
    assert caplog.messages == ["a line", "a line (and 2 more such lines)", "a line"]


def test_some_descriptors_are_left() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 < most_connections() < soft


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_request_without_a_descriptor_is_a_503(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def failing() -> None:
        try:
            raise OSError(number, os.strerror(number))
        except OSError as error:
            raise RuntimeError("behind another error") from error

    body = {"input": "Hi!", "voice": "heart"}
    with monkeypatch.context() as patch:
        patch.setattr(server.engine, "submit", lambda _: failing())
        answer = httpx.post(f"{server.url}/v1/audio/speech", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_open_files")
    assert answer.headers["retry-after"] == "5"
    assert httpx.post(f"{server.url}/v1/audio/speech", json=body).status_code == 200
