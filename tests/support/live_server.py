"""A real server on a real socket, on a thread of the test's process, so that a test can inspect its engine."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from vivavoce_engine import Engine, EngineConfig, SpeechEngine, SynthesisRequest, Thinker
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.fake_runner import FakeRunner, fake_voices
from vivavoce_server import ServerConfig, create_app
from vivavoce_server.accepting import AcceptingServer
from vivavoce_server.listeners import bind
from vivavoce_server.service import Service
from vivavoce_server.uvicorn_sockets import connection_options

from tests.support.waiting import HUNG_S, wait_until


@dataclass
class LiveServer:
    url: str
    engine: SpeechEngine
    service: Service
    connections: Callable[[], tuple[Any, ...]] = tuple
    """The protocol objects of the open connections."""


def fake_engine(
    config: EngineConfig | None = None, before_step: Callable[[Plan], None] | None = None, step_s: float = 0.0
) -> Engine:
    return Engine(FakeRunner(before_step=before_step, step_s=step_s), config or EngineConfig(), fake_voices())


@contextmanager
def live_server(
    engines: SpeechEngine | Mapping[str, SpeechEngine] | None = None,
    config: ServerConfig | None = None,
    thinkers: Mapping[str, Thinker] | None = None,
) -> Iterator[LiveServer]:
    """Starts the engines and a server over them. Stops both at the end. `thinkers` run already."""
    engines = fake_engine() if engines is None else engines
    all_engines = [engines] if isinstance(engines, SpeechEngine) else list(engines.values())
    listener = bind("127.0.0.1", 0)
    config = config or ServerConfig()
    app = create_app(engines, config, thinkers=thinkers)
    server = AcceptingServer(
        uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1, **connection_options(config))
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    for engine in all_engines:
        engine.start()
    thread.start()
    try:
        wait_until(lambda: server.started)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        connections = server.server_state.connections
        yield LiveServer(url, all_engines[0], app.state.service, lambda: tuple(connections))
    finally:
        server.should_exit = True
        thread.join(HUNG_S)
        assert not thread.is_alive(), "the server did not stop"
        for engine in all_engines:
            engine.stop()


def spoken_request(sequence: Sequence) -> SynthesisRequest:
    """The request of a row whose text was known when it began."""
    request = sequence.pending.request
    assert isinstance(request, SynthesisRequest)
    return request


def ask_and_leave(server: LiveServer, path: str, body: Mapping[str, Any], leave_when: Callable[[], bool]) -> None:
    """Sends a request over a bare socket. Closes it without reading once the condition holds."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\n\r\n"
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port or 80)) as client:
        client.sendall(head.encode() + content)
        wait_until(leave_when)


class Gate:
    """Holds the engine's thread before a step until the test releases it. It gives an order without clocks."""

    def __init__(self, hold_from_step: int = 0) -> None:
        self._hold_from_step = hold_from_step
        self._steps = 0
        self._open = threading.Event()
        self.batches: list[int] = []

    def __call__(self, plan: Plan) -> None:
        self.batches.append(len(plan.step))
        self._steps += 1
        if self._steps > self._hold_from_step:
            assert self._open.wait(HUNG_S), "the test never opened the gate"

    def open(self) -> None:
        self._open.set()
