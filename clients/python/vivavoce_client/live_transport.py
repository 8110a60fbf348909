"""The WebSocket under a live session: the interface that a session needs, and its implementation by `websockets`."""

from collections.abc import Awaitable, Callable
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

STREAM_PATH = "/v1/audio/speech/stream"
TRY_AGAIN_LATER = frozenset({1006, 1011, 1012, 1013})
"""Close codes after which a new connection may succeed: broken, failed, restarting, full."""
FROM_503_ON = 502


class ConnectionLost(Exception):
    """The connection is closed or could not be opened. `again` is true if another attempt may succeed."""

    def __init__(self, message: str, again: bool) -> None:
        super().__init__(message)
        self.again = again


class LiveConnection(Protocol):
    """A WebSocket. Both methods raise ConnectionLost."""

    async def send(self, message: str) -> None: ...

    async def receive(self) -> str | bytes: ...

    async def close(self) -> None: ...


Connect = Callable[[str, dict[str, str]], Awaitable[LiveConnection]]
"""(URL, headers) → connection. Raises ConnectionLost."""


class _WebSocket:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, message: str) -> None:
        try:
            await self._connection.send(message)
        except ConnectionClosed as error:
            raise _lost(error) from error

    async def receive(self) -> str | bytes:
        try:
            return await self._connection.recv()
        except ConnectionClosed as error:
            raise _lost(error) from error

    async def close(self) -> None:
        await self._connection.close()


def _lost(error: ConnectionClosed) -> ConnectionLost:
    code = error.rcvd.code if error.rcvd else 1006
    return ConnectionLost(
        error.rcvd.reason if error.rcvd and error.rcvd.reason else str(error), code in TRY_AGAIN_LATER
    )


async def open_websocket(url: str, headers: dict[str, str], subprotocol: str | None = None) -> LiveConnection:
    """Connects by the package `websockets`. The usual Connect."""
    subprotocols = None if subprotocol is None else [Subprotocol(subprotocol)]
    try:
        # Received messages are not bounded, because the server's pings queue behind its audio.
        connection = await connect(
            url, subprotocols=subprotocols, additional_headers=headers, max_queue=None, max_size=None, compression=None
        )
    except InvalidStatus as error:
        status = error.response.status_code
        raise ConnectionLost(f"the server answers {status}", again=status >= FROM_503_ON) from error
    except (OSError, InvalidHandshake) as error:
        raise ConnectionLost(f"no server answers: {error}", again=True) from error
    return _WebSocket(connection)


def stream_url(base_url: str) -> str:
    """http(s)://host/path → ws(s)://host/path/v1/audio/speech/stream"""
    return socket_url(base_url, STREAM_PATH)


def socket_url(base_url: str, path: str) -> str:
    """http(s)://host/base → ws(s)://host/base/path"""
    parts = urlsplit(base_url)
    scheme = "wss" if parts.scheme == "https" else "ws"
    return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + path, "", ""))
