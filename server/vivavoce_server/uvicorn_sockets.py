"""How uvicorn is to hold connections: its limits, its pings, and an end for peers that stop sending or reading."""

import asyncio
import logging
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from vivavoce_server.config import ServerConfig
from vivavoce_server.limits import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 2**10
"""Longest request line and headers."""
HEAD_S = 10.0
"""Seconds that a client has for a request's line and headers, from its first byte or from connecting."""
BODY_S = 120.0
"""Seconds for the body after them: 16 MiB at 1.1 Mbit/s."""
PING_INTERVAL_S = 10.0
PING_TIMEOUT_S = 20.0
"""A peer that answers no ping this long is gone: 30 s after its last sign of life at most."""
ABORT_S = 10.0
"""Seconds that a peer has to take the last bytes and the close message."""


class TimedHttp(H11Protocol):
    """uvicorn's own, but a peer cannot hold the connection open by sending or reading next to nothing.

    A response is written as fast as the peer reads. Once the system's buffers are full the speech waits, its row rests,
    and after `stall_s` in which not even what was written has left, the connection is cut. The speech ends as for any
    client that leaves.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        stall_s: float,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._stall_s = stall_s
        self._stalled: asyncio.TimerHandle | None = None
        self._arriving: asyncio.TimerHandle | None = None
        self._awaited: object = h11.DONE
        """One of h11's states of the client: IDLE while a head is awaited, SEND_BODY while a body is."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # whatever the peer has not made room for starts the clock
        self._await_request(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_request(self.conn.their_state)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self.transport.set_write_buffer_limits()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_request(h11.DONE)  # uvicorn has its own patience between two requests

    def connection_lost(self, exc: Exception | None) -> None:
        self._await_request(h11.DONE)
        self.resume_writing()
        super().connection_lost(exc)

    def _await_request(self, state: object) -> None:
        """Starts a clock whenever another part of a request is awaited; it does not start anew with every byte."""
        if state is self._awaited:
            return
        self._awaited = state
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None
        limits_s: dict[object, float] = {h11.IDLE: HEAD_S, h11.SEND_BODY: BODY_S}
        if (limit_s := limits_s.get(state)) is not None:
            self._arriving = self.loop.call_later(limit_s, self._cut, "sent no whole request", limit_s)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._stall_s, self._cut, "read nothing", self._stall_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _cut(self, reason: str, seconds: float) -> None:
        log.warning("a client that %s for %g s is disconnected", reason, seconds)
        self.transport.abort()


class TimedWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's own, but a peer that reads nothing cannot hold the connection open for ever."""

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "websocket.close":
            # The close message stands in line behind what the peer has not read; nobody waits for that.
            self.writable.set()
        await super().send(message)

    async def run_asgi(self) -> None:
        await super().run_asgi()
        # Its orderly close would wait until all that is written has been read. A connection that is closed by then
        # does not mind.
        self.loop.call_later(ABORT_S, self.transport.abort)


def connection_options(config: ServerConfig) -> dict[str, Any]:
    """Arguments of uvicorn.Config. Audio does not get smaller by compressing each message: that would cost time."""
    return {
        "http": partial(TimedHttp, stall_s=config.stall_s),
        "h11_max_incomplete_event_size": MAX_HEAD_BYTES,
        "ws": TimedWebSocket,
        "ws_max_size": MAX_MESSAGE_BYTES,
        "ws_ping_interval": PING_INTERVAL_S,
        "ws_ping_timeout": PING_TIMEOUT_S,
        "ws_per_message_deflate": False,
    }
