"""A WebSocket connection from its first byte to its close code, for any protocol over a LiveSession.

Three activities run concurrently: reading the client's messages, speaking (session.py), and sending (outbox.py).
"""

import asyncio
import logging
import time
import uuid
from contextlib import ExitStack, suppress
from typing import Protocol
from urllib.parse import urlsplit

from starlette.websockets import WebSocket, WebSocketDisconnect
from vivavoce_engine import EngineError

from vivavoce_server.access import Caller, Keyring
from vivavoce_server.context import request_id
from vivavoce_server.deadlines import max_wait_of
from vivavoce_server.errors import ApiError, engine_error_detail
from vivavoce_server.live.closing import BUG, Closing, Code, fault
from vivavoce_server.live.outbox import Outbox
from vivavoce_server.live.session import LiveSession
from vivavoce_server.live.utterance import MessageWriter
from vivavoce_server.service import Service

log = logging.getLogger(__name__)

FIRST_MESSAGE_S = 10.0
"""Seconds that a client has for its first message."""
FLUSH_S = 2.0
"""Seconds for the last messages before the close message, and again for the close message."""
CONTROL_BYTES = 256 * 2**10
"""Maximum bytes of messages, besides audio, that may wait for a client that sends without reading."""
REASON_BYTES = 123
"""Maximum length of the reason in a close message (RFC 6455)."""


class LiveProtocol(MessageWriter, Protocol):
    """The reading half of a protocol, in addition to the MessageWriter."""

    def connection_key(self, websocket: WebSocket) -> str | None:
        """The API key in the headers or the address; None without one."""
        ...

    def first_key(self, message: str) -> str | None:
        """The API key in the first message, for browsers, which cannot send headers. None without one."""
        ...

    async def handle(self, message: str, session: LiveSession) -> None:
        """Applies a message to the session.

        Raises:
            Closing: the message breaks the protocol.
            ApiError, EngineError: the message asks for something that cannot be served.
        """
        ...

    def farewell(self) -> str | None:
        """The last message after the client has ended the session; None for none."""
        ...


class Connection:
    """Serves a connection to its end: `await Connection(websocket, protocol).run()`."""

    def __init__(self, websocket: WebSocket, protocol: LiveProtocol) -> None:
        service, keyring = websocket.app.state.service, websocket.app.state.keyring
        assert isinstance(service, Service)
        assert isinstance(keyring, Keyring)
        self._service = service
        self._keyring = keyring
        self._websocket = websocket
        self._protocol = protocol
        config = service.config
        self._outbox = Outbox(config.live_max_unsent_bytes, config.live_stall_s)
        self._session: LiveSession | None = None
        self._closing: asyncio.Future[Closing] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        token = request_id.set(uuid.uuid4().hex)
        started_s = time.monotonic()
        path = self._websocket.url.path
        code: int | None = None
        try:
            await self._websocket.accept()
            code = await self._serve()
        except WebSocketDisconnect as gone:
            code = gone.code
        finally:
            fields = {"path": path, "code": code, "duration_s": round(time.monotonic() - started_s, 4)}
            log.info("%(path)s closed with %(code)s after %(duration_s)s s", fields, extra={"fields": fields})
            request_id.reset(token)

    async def _serve(self) -> int:
        writer = asyncio.create_task(self._outbox.run(self._send))
        reader = asyncio.create_task(self._read())
        try:
            closing = await self._first_reason(reader, writer)
            reader.cancel()
            if self._session is not None:
                self._session.abandon()
            return await self._close(closing)
        finally:
            reader.cancel()
            writer.cancel()
            if self._session is not None:
                self._session.abandon()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _first_reason(self, *tasks: asyncio.Task[None]) -> Closing:
        """The reason for closing that comes first. Raises WebSocketDisconnect if the client disconnected."""
        waited: set[asyncio.Future[None] | asyncio.Future[Closing]] = {*tasks, self._closing}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        try:
            for task in tasks:
                if task.done():
                    task.result()
        except Closing as closing:
            return closing
        except WebSocketDisconnect:
            raise
        except Exception:
            log.exception("a bug")
            return BUG
        return self._closing.result()

    async def _close(self, closing: Closing) -> int:
        if closing.detail is not None:
            self._outbox.put(self._protocol.error(closing.detail))
        elif (farewell := self._protocol.farewell()) is not None:
            self._outbox.put(farewell)
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._outbox.flushed()
        # A character has up to 4 bytes. Half a character must not be sent.
        reason = str(closing).encode()[:REASON_BYTES].decode(errors="ignore")
        with suppress(TimeoutError, RuntimeError):  # the client may have closed meanwhile
            async with asyncio.timeout(FLUSH_S):
                await self._websocket.close(closing.code.value, reason)
        return closing.code.value

    async def _send(self, payload: str | bytes) -> None:
        if isinstance(payload, str):
            await self._websocket.send_text(payload)
        else:
            await self._websocket.send_bytes(payload)

    # ---- reading ----------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Reads messages until it raises Closing or WebSocketDisconnect."""
        try:
            with ExitStack() as held:
                with self._service.metrics.admission():
                    held.enter_context(self._service.count_session())
                    self._check_origin()
                    max_wait_s = max_wait_of(self._websocket, self._service.config)
                    key = self._protocol.connection_key(self._websocket)
                    caller = None if key is None else self._keyring.find(key)
                message = await self._receive_first()
                with self._service.metrics.admission():
                    caller = caller or self._keyring.find(self._protocol.first_key(message))
                session = self._open_session(caller, max_wait_s)
                while True:
                    await self._handle(message, session)
                    message = await self._receive_next(session)
        except ApiError as error:
            raise Closing(Code.POLICY, error.detail) from error
        except EngineError as error:
            raise Closing(Code.TRY_AGAIN_LATER, engine_error_detail(error)[1]) from error

    def _open_session(self, caller: Caller, max_wait_s: float) -> LiveSession:
        self._session = LiveSession(self._service, caller, self._protocol, self._outbox, self._end, max_wait_s)
        return self._session

    def _end(self, closing: Closing) -> None:
        if not self._closing.done():
            self._closing.set_result(closing)

    async def _handle(self, message: str, session: LiveSession) -> None:
        try:
            await self._protocol.handle(message, session)
        except ApiError as error:
            session.report(error.detail)
        except EngineError as error:
            session.report(engine_error_detail(error)[1])
        if self._outbox.waiting_bytes > self._service.config.live_max_unsent_bytes + CONTROL_BYTES:
            raise Closing(Code.POLICY, fault("The client sends without reading", "slow_reader"))

    def _check_origin(self) -> None:
        """Refuses pages of other sites if the server has no keys.

        Such pages could otherwise use a server that only their visitor can reach.
        """
        origin = self._websocket.headers.get("origin")
        allowed = self._service.config.cors_origins
        if origin is None or self._keyring.wanted or "*" in allowed or origin in allowed:
            return
        if urlsplit(origin).netloc != self._websocket.headers.get("host"):
            raise ApiError(403, f"Pages of {origin} may not use this server", None, "origin_not_allowed")

    async def _receive_first(self) -> str:
        try:
            async with asyncio.timeout(FIRST_MESSAGE_S):
                return await self._receive()
        except TimeoutError:
            message = f"There was no message within {FIRST_MESSAGE_S:g} s"
            raise Closing(Code.POLICY, fault(message, "first_message_timeout")) from None

    async def _receive_next(self, session: LiveSession) -> str:
        while True:
            before = session.progress
            try:
                async with asyncio.timeout(self._service.config.live_idle_s):
                    return await self._receive()
            except TimeoutError:
                if before is not None and session.progress == before:
                    session.time_out()

    async def _receive(self) -> str:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005), message.get("reason"))
        text = message.get("text")
        if text is None:
            raise Closing(Code.PROTOCOL, fault("Binary messages have no meaning here; send JSON", "binary_message"))
        assert isinstance(text, str)
        return text
