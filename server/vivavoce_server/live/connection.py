"""A WebSocket connection from its first byte to its close code, for any protocol.

Three activities run concurrently: reading the client's messages, speaking (session.py or realtime.py), and sending
(outbox.py).
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect
from vivavoce_engine import EngineError

from vivavoce_server.access import Caller, Keyring
from vivavoce_server.deadlines import max_wait_of
from vivavoce_server.errors import ApiError, ErrorDetail, engine_error_detail
from vivavoce_server.live.closing import BUG, Closing, Code, fault
from vivavoce_server.live.handshake import check_subprotocols, refuse
from vivavoce_server.live.messages import check_structure
from vivavoce_server.live.outbox import Lane, Outbox
from vivavoce_server.live.session import LiveSession
from vivavoce_server.live.surrogates import SurrogateHalves
from vivavoce_server.live.utterance import MessageWriter
from vivavoce_server.request_lines import note_error
from vivavoce_server.service import Service, stopping

log = logging.getLogger(__name__)

FIRST_MESSAGE_S = 10.0
"""Seconds that a client has for its first message if that has to bring its key. All others may be silent for hours,
because agents dial when they start, and speak when somebody speaks to them. Pings find those that are gone."""
FLUSH_S = 2.0
"""Seconds for the last messages before the close message, and again for the close message."""
CONTROL_BYTES = 256 * 2**10
"""Maximum bytes of messages, besides audio, that may wait for a client that sends without reading."""
REASON_BYTES = 123
"""Maximum length of the reason in a close message (RFC 6455)."""


class SocketProtocol(Protocol):
    """The part that all protocols have."""

    def error(self, detail: ErrorDetail) -> str | None:
        """The message of an error; None for none."""
        ...

    def farewell(self) -> str | None:
        """The last message after the client has ended the session; None for none."""
        ...


class LiveProtocol(SocketProtocol, MessageWriter, Protocol):
    """A protocol over a LiveSession: its reading half, in addition to the MessageWriter."""

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


class Socket(ABC):
    """Serves a connection to its end: `await Connection(websocket, protocol).run()`, or another subclass."""

    def __init__(self, websocket: WebSocket, protocol: SocketProtocol) -> None:
        service, keyring = websocket.app.state.service, websocket.app.state.keyring
        assert isinstance(service, Service)
        assert isinstance(keyring, Keyring)
        self._service = service
        self._keyring = keyring
        self._websocket = websocket
        self._writer = protocol
        self._held = ExitStack()
        """The connection's place among those that are open."""
        config = service.config
        self._outbox = Outbox(config.live_max_unsent_bytes, config.live_stall_s)
        self._halves = SurrogateHalves()
        self._closing: asyncio.Future[Closing] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        try:
            await self._accept()
            await self._serve()
        except ApiError as error:
            await refuse(self._websocket, error)
        except WebSocketDisconnect:
            pass

    async def accept_with_headers(self, subprotocol: str | None = None) -> None:
        """Answers the handshake, with the header fields of a response with speech."""
        fields = self._service.header_fields().items()
        headers = [(name.lower().encode(), value.encode()) for name, value in fields]
        await self._websocket.accept(subprotocol, headers)

    @abstractmethod
    async def _accept(self) -> None:
        """Accepts the handshake. An ApiError refuses it."""

    async def _read(self) -> None:
        """Reads messages until it raises Closing or WebSocketDisconnect."""
        try:
            await self._converse()
        except ApiError as error:
            raise Closing(Code.POLICY, error.detail) from error
        except EngineError as error:
            raise Closing(Code.TRY_AGAIN_LATER, engine_error_detail(error)[1]) from error

    @abstractmethod
    async def _converse(self) -> None:
        """Checks the caller, then reads messages for ever. An ApiError or EngineError closes the connection."""

    @abstractmethod
    async def _until_silent(self) -> None:
        """Returns once nothing is spoken on the connection."""

    @abstractmethod
    def _abandon(self) -> None:
        """Ends all speech because the listener is gone. May be called twice."""

    async def _serve(self) -> None:
        writer = asyncio.create_task(self._outbox.run(self._send))
        reader = asyncio.create_task(self._read())
        leaver = asyncio.create_task(self._leave_when_stopping())
        try:
            closing = await self._first_reason(reader, writer)
            reader.cancel()
            self._abandon()
            await self._close(closing)
        finally:
            reader.cancel()
            writer.cancel()
            leaver.cancel()
            self._abandon()
            await asyncio.gather(reader, writer, leaver, return_exceptions=True)
            self._held.close()

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

    async def _leave_when_stopping(self) -> None:
        """Closes the connection once the server stops, as soon as nothing is spoken."""
        await self._service.stopping.wait()
        await self._until_silent()
        self._end(Closing(Code.TRY_AGAIN_LATER, engine_error_detail(stopping())[1]))

    async def _close(self, closing: Closing) -> None:
        if closing.detail is not None:
            note_error(closing.detail.code, closing.detail.param)
        last = self._writer.farewell() if closing.detail is None else self._writer.error(closing.detail)
        if last is not None:
            self._outbox.put(last)
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._outbox.flushed()
        # A character has up to 4 bytes. Half a character must not be sent.
        reason = str(closing).encode()[:REASON_BYTES].decode(errors="ignore")
        with suppress(TimeoutError, RuntimeError):  # the client may have closed meanwhile
            async with asyncio.timeout(FLUSH_S):
                await self._websocket.close(closing.code.value, reason)

    async def _send(self, payload: str | bytes) -> None:
        if isinstance(payload, str):
            await self._websocket.send_text(payload)
        else:
            await self._websocket.send_bytes(payload)

    def _end(self, closing: Closing) -> None:
        if not self._closing.done():
            self._closing.set_result(closing)

    def _check_reader(self) -> None:
        if self._outbox.waiting_bytes > self._service.config.live_max_unsent_bytes + CONTROL_BYTES:
            raise Closing(Code.POLICY, fault("The client sends without reading", "slow_reader"))

    async def _receive(self) -> str:
        """The next message, with whole characters."""
        while True:
            # Messages that have arrived are received without a wait. Others must have their turn meanwhile.
            await asyncio.sleep(0)
            text = await self._receive_text()
            check_structure(text)
            if (message := self._halves.mend(text)) is not None:
                return message

    async def _receive_text(self) -> str:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005), message.get("reason"))
        text = message.get("text")
        if text is None:
            raise Closing(Code.PROTOCOL, fault("Binary messages have no meaning here; send JSON", "binary_message"))
        assert isinstance(text, str)
        return text


class Connection(Socket):
    """A connection over a LiveSession."""

    def __init__(self, websocket: WebSocket, protocol: LiveProtocol) -> None:
        super().__init__(websocket, protocol)
        self._protocol = protocol
        self._session: LiveSession | None = None

    async def _accept(self) -> None:
        with self._service.metrics.admission():
            self._caller_so_far()
            check_subprotocols(self._websocket)
        await self.accept_with_headers()

    async def _until_silent(self) -> None:
        if self._session is not None:
            await self._session.open_utterances.none.wait()

    def _abandon(self) -> None:
        if self._session is not None:
            self._session.abandon()

    async def _converse(self) -> None:
        with self._service.metrics.admission():
            max_wait_s = max_wait_of(self._websocket, self._service.config)
            caller = self._caller_so_far()
            if caller is not None:
                self._held.enter_context(self._service.count_session())
        if caller is None:
            caller, message = await self._receive_key()
        else:
            message = await self._receive()
        session = self._open_session(caller, max_wait_s)
        while True:
            await self._handle(message, session)
            message = await self._receive_next(session)

    def _caller_so_far(self) -> Caller | None:
        """The caller whose key is in the handshake, or anybody on a server without keys. None if a key must follow.

        Raises:
            ApiError: 401, the key is not known.
        """
        key = self._protocol.connection_key(self._websocket)
        return None if key is None and self._keyring.wanted else self._keyring.find(key)

    async def _receive_key(self) -> tuple[Caller, str]:
        """The caller whose key is in the first message, and that message."""
        with ExitStack() as waiting:
            with self._service.metrics.admission():
                waiting.enter_context(self._service.count_session_without_key(self._give_way))
            try:
                async with asyncio.timeout(FIRST_MESSAGE_S):
                    message = await self._receive()
            except TimeoutError:
                text = f"There was no message with a key within {FIRST_MESSAGE_S:g} s"
                raise Closing(Code.POLICY, fault(text, "first_message_timeout")) from None
        with self._service.metrics.admission():
            caller = self._keyring.find(self._protocol.first_key(message))
            self._held.enter_context(self._service.count_session())
        return caller, message

    def _give_way(self) -> None:
        """Closes the connection, which has not sent its key, for the sake of newer ones."""
        text = "Too many connections wait for their key; send it in the handshake, or at once"
        self._end(Closing(Code.TRY_AGAIN_LATER, fault(text, "too_many_without_key")))

    def _open_session(self, caller: Caller, max_wait_s: float) -> LiveSession:
        lane = Lane(self._outbox)
        self._session = LiveSession(self._service, caller, self._protocol, lane, self._end, max_wait_s)
        return self._session

    async def _handle(self, message: str, session: LiveSession) -> None:
        try:
            await self._protocol.handle(message, session)
        except ApiError as error:
            session.report(error.detail)
        except EngineError as error:
            session.report(engine_error_detail(error)[1])
        self._check_reader()

    async def _receive_next(self, session: LiveSession) -> str:
        while True:
            before = session.progress
            try:
                async with asyncio.timeout(self._service.config.live_idle_s):
                    return await self._receive()
            except TimeoutError:
                if before is not None and session.progress == before:
                    session.time_out()
