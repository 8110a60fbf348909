"""One request and its answer over HTTP/1.1, on a connection of its own.

A load generator is limited by the CPU time of a request, and its times are wrong by whatever keeps its event loop. So
an answer is handed over as its bytes arrive, without tasks and queues between: per request a fifth of the CPU time of
httpx.
"""

import asyncio
import socket
from typing import Protocol
from urllib.parse import urlsplit

import h11
import httpx
from vivavoce_client.client import CONNECT_TIMEOUT_S

from vivavoce_bench.listener.reception import Incomplete

DEFAULT_PORTS = {"http": 80, "https": 443}
Address = tuple[str, int]


class Answer(Protocol):
    """Receiver of an answer. Each method is called at the moment of what it names."""

    def sent(self) -> None:
        """The first byte of the body is about to be sent."""
        ...

    def head(self, status: int, content_type: str) -> None:
        """The answer's head has arrived."""
        ...

    def data(self, piece: bytes) -> None:
        """Bytes of the answer's body have arrived. Raises Incomplete or ValueError if they are wrong."""
        ...

    def end(self) -> None:
        """The answer's body has ended. Raises Incomplete if the speech has not."""
        ...


class Exchange(Protocol):
    """Sends the bodies of requests."""

    async def send(self, body: bytes, answer: Answer) -> None:
        """Sends one request and waits for the end of its answer. Raises Incomplete if the connection fails."""
        ...


class HttpExchange:
    """POSTs JSON bodies to one URL. Each request has a connection of its own, opened before time zero."""

    def __init__(self, url: str, path: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            raise ValueError(f"{url!r} is not the URL of an HTTP server")
        self._host = parts.hostname
        self._port = parts.port or DEFAULT_PORTS[parts.scheme]
        self._tls = httpx.create_ssl_context() if parts.scheme == "https" else None
        self._target = parts.path.rstrip("/") + path
        self._headers = [
            ("Host", parts.netloc.rpartition("@")[2]),
            ("Content-Type", "application/json"),
            ("Accept-Encoding", "identity"),
            ("Connection", "close"),
            *headers.items(),
        ]
        self._addresses: list[Address] = []

    async def send(self, body: bytes, answer: Answer) -> None:
        request = h11.Request(
            method="POST", target=self._target, headers=[*self._headers, ("Content-Length", str(len(body)))]
        )
        connection = await self._connect()
        try:
            connection.send(request, body, answer)
            await connection.ended
        finally:
            connection.abort()

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        if not self._addresses:
            await self._look_up()
        failure: Exception | None = None
        for host, port in self._addresses:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    name = self._host if self._tls is not None else None
                    _, connection = await loop.create_connection(
                        _Connection, host, port, ssl=self._tls, server_hostname=name
                    )
                    return connection
            except (OSError, TimeoutError) as error:
                failure = error
        raise _failed(failure) from failure

    async def _look_up(self) -> None:
        """Looks the host up, once for all requests."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise Incomplete(f"there is no host {self._host}: {error}") from error
        self._addresses = [(str(address[0]), self._port) for *_, address in found]


class _Connection(asyncio.Protocol):
    """One connection, with one request. `ended` is done when the answer is whole, and has the error if it is not."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._http = h11.Connection(h11.CLIENT)
        self._answer: Answer | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, request: h11.Request, body: bytes, answer: Answer) -> None:
        assert self._transport is not None, "create_connection returns connected protocols"
        self._answer = answer
        parts = (request, h11.Data(data=body), h11.EndOfMessage())
        sent = b"".join(self._http.send(part) or b"" for part in parts)
        answer.sent()
        self._transport.write(sent)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if not self.ended.done():
            self.ended.cancel()

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def eof_received(self) -> None:
        self._receive(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(_failed(error or ConnectionError("it was closed")))

    def _receive(self, data: bytes) -> None:
        if self.ended.done() or self._answer is None:
            return
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) is not h11.NEED_DATA:
                if self._handle(event, self._answer):
                    return
        except h11.RemoteProtocolError as error:
            self._fail(_failed(error))
        except Exception as error:  # of the answer: it belongs to the one who waits for the end
            self._fail(error)

    def _handle(self, event: object, answer: Answer) -> bool:
        """Hands one event over. Returns True at the end of the answer."""
        match event:
            case h11.Response(status_code=status, headers=headers):
                kinds = [value.decode("latin-1") for name, value in headers if name == b"content-type"]
                answer.head(status, "".join(kinds[:1]))
            case h11.Data(data=piece):
                answer.data(bytes(piece))
            case h11.EndOfMessage():
                answer.end()
                self.ended.set_result(None)
                return True
            case h11.ConnectionClosed() | h11.PAUSED:
                return True
        return False

    def _fail(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)


def _failed(error: Exception | None) -> Incomplete:
    return Incomplete(f"the connection failed: {type(error).__name__} {error}".rstrip())
