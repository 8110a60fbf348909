"""How uvicorn is to run WebSockets: its limits, its pings, and an end for connections whose reader has stopped."""

from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

MAX_MESSAGE_BYTES = 4 * 2**20
"""Largest message of a client: 30 s of reference audio in base64 fit."""
PING_INTERVAL_S = 10.0
PING_TIMEOUT_S = 20.0
"""A peer that answers no ping this long is gone: 30 s after its last sign of life at most."""
ABORT_S = 10.0
"""Seconds that a peer has to take the last bytes and the close message."""


class PromptWebSocket(WebSocketsSansIOProtocol):
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


def websocket_options() -> dict[str, Any]:
    """Arguments of uvicorn.Config. Audio does not get smaller by compressing each message: that would cost time."""
    return {
        "ws": PromptWebSocket,
        "ws_max_size": MAX_MESSAGE_BYTES,
        "ws_ping_interval": PING_INTERVAL_S,
        "ws_ping_timeout": PING_TIMEOUT_S,
        "ws_per_message_deflate": False,
    }
