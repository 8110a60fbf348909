"""Connections of uvicorn: limits, pings, and time-outs for peers that stop sending or reading."""

import asyncio
import fcntl
import logging
import math
import select
import socket
import struct
import sys
import termios
import uuid
from asyncio.transports import BaseTransport
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from h11._writers import ChunkedWriter
from opentelemetry.trace import NoOpTracer
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import is_ssl
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from vivavoce_server.config import ServerConfig
from vivavoce_server.errors import BAD_REQUEST, NOT_SERVING_RETRY_S, ApiError, api_error_response
from vivavoce_server.limits import MAX_MESSAGE_BYTES
from vivavoce_server.logs import Throttle, request_id
from vivavoce_server.request_lines import RequestLine
from vivavoce_server.spans import begin_span

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 2**10
"""Maximum size of the request line and headers together."""
READ_BYTES = 2**10
"""Bytes of a connection that are handled before others have their turn. The shortest frames and chunks have six bytes,
and each takes 0.1 ms."""
BODY_READ_BYTES = 64 * 2**10
"""The same for a body of a known length, which is not parsed."""
MAX_FRAGMENTS = 2**14
"""Most frames of one WebSocket message."""
HEAD_S = 10.0
"""Seconds for a request's line and headers, counted from connecting or from the request's first byte."""
BODY_S = 120.0
"""Seconds for the body after the headers: 16 MiB at 1.1 Mbit/s."""
PING_INTERVAL_S = 10.0
PING_TIMEOUT_S = 20.0
"""Seconds without an answer to a ping after which a peer counts as gone: at most 30 s after its last sign of life."""
ABORT_S = 10.0
"""Seconds that a peer has to take the last bytes and the close message."""
RESET_POLL_S = 0.05
"""Seconds between two looks at the bytes that a peer has not acknowledged, before its connection is reset."""
UNREAD_S = 10.0
"""Seconds for the rest of a body whose request was answered without it. Nothing of it is kept."""
NO_HANDSHAKE = "A WebSocket handshake has no body, 128 headers at most, and lines up to 8192 bytes"
UNREAD = object()
"""State of a client that still sends a body whose request has been answered."""
TCP_CLOSED = 7
"""State of a connection that its peer has reset, in Linux' tcp_info."""


class ReadInPortions(asyncio.BufferedProtocol):
    """A protocol that gets at most `read_bytes` at once, and lets other connections have their turn, with TLS too."""

    read_bytes = READ_BYTES
    _buffer = memoryview(b"")

    def get_buffer(self, sizehint: int) -> memoryview:
        # A slice of it must not be a copy, because asyncio's TLS writes into slices.
        if len(self._buffer) != self.read_bytes:
            self._buffer = memoryview(bytearray(self.read_bytes))
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError


class TimedHttp(H11Protocol, ReadInPortions):
    """uvicorn's HTTP protocol, with time-outs for a peer that sends or reads almost nothing.

    A response is written as fast as the peer reads. Once the system's buffers are full, the speech waits and its row
    pauses. The connection is cut after `stall_s` in which the data already written has not left either. The speech then
    ends as it does for any client that leaves.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        stall_s: float,
        told: Throttle,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._stall_s = stall_s
        self._stalled: asyncio.TimerHandle | None = None
        self._arriving: asyncio.TimerHandle | None = None
        self._awaited: object = h11.DONE
        """State of the client in h11: IDLE while a head is awaited, SEND_BODY while a body is."""
        self._is_upgraded = False
        self._has_sent_all = False
        """True once the client has shut its side down. It still reads."""
        self._is_deaf = False
        """True once something came that is no HTTP, after which nothing is understood."""
        self._told = told

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_read_bytes()
        # Any byte that the peer has no room for starts the clock. TLS takes a limit of 0 for one that is reached.
        transport.set_write_buffer_limits(1 if is_ssl(transport) else 0, 0)
        self._await_request(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        super().data_received(data)
        if not self._is_deaf:
            self._await_request(self.conn.their_state)
            self._set_read_bytes()

    def _set_read_bytes(self) -> None:
        """Sets how many bytes are read at once."""
        names = {name for name, _ in self.headers or ()} if self.conn.their_state is h11.SEND_BODY else set()
        known = b"content-length" in names and b"transfer-encoding" not in names and not self._is_upgraded
        self.read_bytes = BODY_READ_BYTES if known else READ_BYTES

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self.transport.set_write_buffer_limits()
        super().handle_websocket_upgrade(event)
        # h11 now waits for a body, and this protocol hears no more of the connection, not even its end.
        self._is_upgraded = True
        self._stop_clocks()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # The head of the next request may be here already. Before a head, uvicorn has its own time-out.
        state = self.conn.their_state
        self._await_request(h11.DONE if state is h11.IDLE else state)
        if self._has_sent_all and self.cycle.response_complete:
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keeps a connection open whose client has sent its whole request, and waits for the answer."""
        cycle = self.cycle
        if cycle is None or cycle.more_body or cycle.response_complete or not hasattr(socket, "TCP_INFO"):
            return False
        if is_ssl(self.transport):  # asyncio's TLS has no connections that are half closed
            return False
        if not self._has_sent_all:
            self._has_sent_all = True
            self._provoke_reset()
            self._look_for_reset()
        return True

    def _provoke_reset(self) -> None:
        """Sends bytes without a meaning, which a client that has left altogether answers by a reset.

        The end of what a client sends looks alike, whether it still reads or not. HTTP/1.0 has no such bytes.
        """
        if self.conn.their_http_version != b"1.1" or self._peer().family == socket.AF_UNIX:
            return
        if self.conn.our_state is h11.SEND_RESPONSE:
            interim = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(interim))
        elif isinstance(self.conn._writer, ChunkedWriter):
            self.transport.write(b"0")  # a leading zero of the next chunk's length

    def _look_for_reset(self) -> None:
        """Cuts the connection once the client has reset it. asyncio would see that in the next write but one."""
        if self.transport.is_closing() or self.cycle.response_complete:
            return
        if has_left(self._peer()):
            self.transport.abort()
        else:
            self.loop.call_later(RESET_POLL_S, self._look_for_reset)

    def _peer(self) -> socket.socket:
        peer: socket.socket = self.transport.get_extra_info("socket")
        return peer

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are no HTTP with an error object, unless an answer to them has begun."""
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else BAD_REQUEST
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        self.transport.write(malformed(status, str(error or msg), _address(self.transport)))
        # Closing now would reset the connection, and the client would lose the answer with it.
        self._is_deaf = True
        self._await_request(UNREAD)
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:  # TLS
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clocks()
        if exc is None and self._ends_by_closing():
            _reset_when_read(self.transport.get_extra_info("socket"), self.loop)
        super().connection_lost(exc)

    def _ends_by_closing(self) -> bool:
        """True if the connection's end would be taken for the end of a response that has broken off."""
        cycle = self.cycle
        if cycle is None or not cycle.response_started or cycle.response_complete:
            return False
        return self.conn.their_http_version == b"1.0"

    def _stop_clocks(self) -> None:
        self._await_request(h11.DONE)
        self.resume_writing()

    def _await_request(self, state: object) -> None:
        """Starts a clock when the next part of a request is awaited. Further bytes of it do not restart the clock."""
        if self._is_upgraded:
            state = h11.DONE
        if state is h11.SEND_BODY and self.cycle is not None and self.cycle.response_complete:
            state = UNREAD
        if state is self._awaited:
            return
        self._awaited = state
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None
        limits_s: dict[object, float] = {h11.IDLE: HEAD_S, h11.SEND_BODY: BODY_S, UNREAD: UNREAD_S}
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
        self._told.tell("a client that %s for %g s is disconnected", reason, seconds)
        self.transport.abort()


def has_left(peer: socket.socket) -> bool:
    """True if the peer has closed the whole connection, and not only its own side."""
    if peer.family == socket.AF_UNIX:
        poll = select.poll()
        poll.register(peer.fileno(), 0)
        return any(event & select.POLLHUP for _, event in poll.poll(0))
    return peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSED


def malformed(status: int, reason: str, client: str | None) -> bytes:
    """The whole answer to a request that is no HTTP, as an error object with a request id. A log line tells of it."""
    error = ApiError(status, f"This is no valid HTTP request: {reason}", None, "invalid_request")
    with _refused(status, client) as name:
        body = bytes(api_error_response(error).body)
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"X-Request-ID: {name}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@contextmanager
def _refused(status: int, client: str | None, **fields: object) -> Iterator[str]:
    """Writes the line of a request that no application sees, after the block. Yields the request's id.

    The reason is in the answer alone: it repeats bytes of the client, in which a key or a text may be.
    """
    token = request_id.set(uuid.uuid4().hex)
    line = RequestLine("request", {"status": status, "client": client, **fields}, begin_span(NoOpTracer(), "refused"))
    try:
        with line.current():
            yield request_id.get()
        line.end()
    finally:
        request_id.reset(token)


def _address(transport: BaseTransport) -> str | None:
    """The address of a connection's other end, None for a socket in the file system."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else None


def _reset_when_read(peer: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    """Keeps a connection open until the peer has acknowledged all bytes, ABORT_S at most. Then resets it.

    The caller closes its own socket. An earlier reset would drop the bytes on their way.
    """
    held = peer.dup()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until_s = loop.time() + ABORT_S

    def look() -> None:
        (unread,) = struct.unpack("i", fcntl.ioctl(held, termios.TIOCOUTQ, b"\0" * 4))
        if unread and loop.time() < until_s:
            loop.call_later(RESET_POLL_S, look)
        else:
            held.close()

    look()


class Handshakes(ServerProtocol):
    """The side of a server in `websockets`, which refuses handshakes as this server refuses requests."""

    client: str | None = None
    """Address of the connection's other end."""

    def accept(self, request: Request) -> Response:
        response = super().accept(request)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            return response
        reason = bytes(response.body or b"").decode(errors="replace").strip()
        path = request.path.partition("?")[0]
        with _refused(response.status_code, self.client, method="GET", path=path) as named:
            shaped = api_error_response(ApiError(response.status_code, reason, None, "invalid_handshake"))
        response.body = bytes(shaped.body)
        for name, value in (*shaped.headers.items(), ("X-Request-ID", named)):
            if name in response.headers:
                del response.headers[name]
            response.headers[name] = value
        return response


class TimedWebSocket(WebSocketsSansIOProtocol, ReadInPortions):
    """uvicorn's WebSocket protocol, with a time-out for a peer that reads nothing."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self.conn = self._handshakes = Handshakes(max_size=config.ws_max_size, logger=self.logger)
        self._held_pong = b""
        """Answer to the latest ping of a peer that reads nothing."""

    def connection_made(self, transport: BaseTransport) -> None:
        # A server that drains closes its HTTP connections by a header, which says `upgrade` here.
        self.default_headers = [header for header in self.default_headers if header[0] != b"connection"]
        super().connection_made(transport)
        self._handshakes.client = _address(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # The head of the request comes whole. uvicorn does not answer one that the package websockets refuses: with a
        # body, too many headers, or too long a line. Its connection would stay open without a clock or a place.
        if not self.handshake_initiated:
            self.transport.write(malformed(BAD_REQUEST, NO_HANDSHAKE, _address(self.transport)))
            self.transport.close()

    def shutdown(self) -> None:
        # The server stops. uvicorn answers 500 to a handshake that it catches here, as if it had a fault.
        if not (self.handshake_complete or self.initial_response or self.close_sent):
            refusal = self.conn.reject(HTTPStatus.SERVICE_UNAVAILABLE, "The server is stopping\n")
            refusal.headers["Retry-After"] = str(math.ceil(NOT_SERVING_RETRY_S))
            self.conn.send_response(refusal)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.stop_keepalive()
            self.transport.close()
            return
        super().shutdown()

    def handle_ping(self) -> None:
        # A peer that sends pings and reads nothing would otherwise fill the memory with their answers. RFC 6455, 5.5.3,
        # lets the latest one stand for all.
        if self.writable.is_set() or self.conn.state is not State.OPEN:
            super().handle_ping()
        else:
            self._held_pong = b"".join(self.conn.data_to_send()) or self._held_pong

    def handle_cont(self, event: Frame) -> None:
        # An empty fragment adds nothing to a message's size, and a short one costs much more than its bytes.
        if self.close_sent:
            return
        if len(self.frames) >= MAX_FRAGMENTS:
            self._fail(CloseCode.MESSAGE_TOO_BIG, f"a message has at most {MAX_FRAGMENTS} fragments")
            return
        super().handle_cont(event)

    def _fail(self, code: CloseCode, reason: str) -> None:
        """Closes the connection because of what came on it."""
        self.frames = []
        self.conn.send_close(code, reason)
        self.handle_parser_exception()

    def resume_writing(self) -> None:
        super().resume_writing()
        pong, self._held_pong = self._held_pong, b""
        if pong and not self.transport.is_closing():
            self.transport.write(pong)

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError as error:
                # uvicorn would log a traceback for it, as if the server had a fault.
                self._fail(CloseCode.INVALID_DATA, f"{error.reason} at position {error.start}")
                return
        super().send_receive_event_to_app()

    def keepalive_timeout(self) -> None:
        if self.read_paused:
            # The server is busy with a message. The answer to the ping may lie behind it.
            assert self.ping_timeout is not None
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            return
        super().keepalive_timeout()

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "websocket.close":
            # The close message queues behind the bytes that the peer has not read. Nobody waits for it.
            self.writable.set()
        await super().send(message)

    async def run_asgi(self) -> None:
        await super().run_asgi()
        # uvicorn's orderly close would wait until the peer has read everything. Aborting is harmless after it.
        self.loop.call_later(ABORT_S, self.transport.abort)


def connection_options(config: ServerConfig) -> dict[str, Any]:
    """Arguments of uvicorn.Config. Messages are not compressed: that takes time and does not make audio smaller."""
    return {
        # uvicorn would take uvloop where it is installed, whose transports have no limit on what is read at once.
        "loop": "asyncio",
        "http": partial(TimedHttp, stall_s=config.stall_s, told=Throttle(log, logging.WARNING)),
        "h11_max_incomplete_event_size": MAX_HEAD_BYTES,
        "ws": TimedWebSocket,
        "ws_max_size": MAX_MESSAGE_BYTES,
        "ws_ping_interval": PING_INTERVAL_S,
        "ws_ping_timeout": PING_TIMEOUT_S,
        "ws_per_message_deflate": False,
        "proxy_headers": bool(config.trusted_proxies),
        "forwarded_allow_ips": list(config.trusted_proxies),
    }
