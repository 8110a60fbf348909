"""A whole server with a port for the Wyoming protocol, on a thread of the test's process."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vivavoce_engine import Engine
from vivavoce_server import ServerConfig, create_app
from vivavoce_server.draining import DrainingServer
from vivavoce_server.listeners import bind
from vivavoce_server.service import Service
from vivavoce_server.wyoming import WyomingServer
from vivavoce_server.wyoming_announcement import Announcement

from tests.support.live_server import fake_engine
from tests.support.waiting import HUNG_S


@dataclass
class Wyoming:
    port: int
    url: str
    """Address of its HTTP port."""
    engine: Engine
    service: Service
    stop: Callable[[], None]


@contextmanager
def wyoming_server(
    engine: Engine | None = None, config: ServerConfig | None = None, host: str = "127.0.0.1", announced: bool = False
) -> Iterator[Wyoming]:
    """A whole server with a port for Wyoming."""
    engine, config = engine or fake_engine(), config or ServerConfig(grace_s=0)
    app = create_app(engine, config)
    listener, wyoming = bind("127.0.0.1", 0), bind(host, 0)
    started = threading.Event()
    announcement = Announcement(wyoming) if announced else None
    server = DrainingServer(app, config, started.set, None, WyomingServer(app.state.service, wyoming, announcement))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})

    def stop() -> None:
        server.handle_exit(signal.SIGTERM, None)

    engine.start()
    thread.start()
    try:
        assert started.wait(HUNG_S)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield Wyoming(wyoming.getsockname()[1], url, engine, app.state.service, stop)
    finally:
        stop()
        thread.join(HUNG_S)
        engine.stop()
        assert not thread.is_alive()
