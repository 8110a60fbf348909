"""The Wyoming protocol over TCP, by which Home Assistant finds and uses a local voice.

An event is a line of JSON {type, data?, data_length?, payload_length?}, then `data_length` bytes of JSON that join
`data`, then `payload_length` bytes. Events of other types are passed over. The protocol has no keys: everybody who
reaches the port may speak, so it listens on `wyoming_host`, this machine by default, and only with a `wyoming_port`.

Client → server
    describe                               → info: the voices of all models, and stored ones, with their languages
    ping {text?}                           → pong {text?}
    synthesize {text, voice?, text_format?}         speaks a text. `voice` is {name} or {language}; without it, the
                                                    first voice. `text_format` is text, the default, or ssml
    synthesize-start {voice?, text_format?}         begins a text that comes in pieces. It is spoken as it comes, like
    synthesize-chunk {text}, synthesize-stop        the text of the live sockets. A synthesize between start and stop
                                                    repeats the whole text for servers that do not stream, and is
                                                    passed over

Server → client
    audio-start, audio-chunk, audio-stop   {rate, width 2, channels 1}; chunks carry 16-bit PCM
    synthesize-stopped                     behind the audio-stop of a text in pieces
    error {text, code}                     an error. Behind an audio-start, the audio-stop still follows

A client that hangs up ends its speech. Requests of one connection come one after the other. Its limits are those of the
live sockets: live_max_sessions, live_max_chars, live_idle_s, live_stall_s.
"""

import asyncio
import json
import logging
import socket
import uuid
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

from fastapi import FastAPI
from opentelemetry.trace import NoOpTracer, Tracer
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json
from vivavoce_engine import EngineError

from vivavoce_server.accepting import Acceptor, most_connections
from vivavoce_server.access import Caller
from vivavoce_server.audio import AudioOptions
from vivavoce_server.config import ServerConfig
from vivavoce_server.context import address_of, client_address
from vivavoce_server.errors import ApiError, ErrorDetail, error_detail, invalid, validation_detail
from vivavoce_server.listeners import make_reusable
from vivavoce_server.live.closing import BUG, Closing, Code, fault
from vivavoce_server.live.connection import CONTROL_BYTES, FLUSH_S
from vivavoce_server.live.outbox import Lane, Outbox
from vivavoce_server.live.plan import plan_live
from vivavoce_server.live.session import LiveSession, State
from vivavoce_server.live.utterance import SpokenWords, UtteranceSummary
from vivavoce_server.logs import request_id
from vivavoce_server.loop_watch import activity
from vivavoce_server.request_lines import RequestLine, note, note_error
from vivavoce_server.schemas import SpeechOptions
from vivavoce_server.service import Service, stopping
from vivavoce_server.spans import begin_span
from vivavoce_server.wyoming_announcement import Announcement
from vivavoce_server.wyoming_voices import info_of, pick_voice, voices_of

log = logging.getLogger(__name__)

MAX_EVENT_BYTES = 128 * 2**10
"""Maximum size of an event's line, and of its data."""
MAX_PAYLOAD_BYTES = 2**20
IDLE_S = 300.0
"""Seconds after which a connection that says and hears nothing is closed."""


def open_wyoming(app: FastAPI, config: ServerConfig, listener: socket.socket) -> "WyomingServer":
    """The protocol on a bound socket, for an app's service."""
    announcement = Announcement(listener) if config.wyoming_zeroconf else None
    return WyomingServer(app.state.service, listener, announcement, app.state.tracing.tracer)


class VoiceChoice(BaseModel):
    name: str | None = None
    language: str | None = None


class _Data(BaseModel):
    model_config = ConfigDict(extra="ignore")


class Start(_Data):
    voice: VoiceChoice | None = None
    text_format: str | None = None


class Synthesize(Start):
    text: str


class Chunk(_Data):
    text: str


@dataclass(frozen=True)
class Event:
    type: str
    data: dict[str, Any]


def written(kind: str, data: dict[str, object] | None = None, payload: bytes = b"") -> bytes:
    """The bytes of an event."""
    line: dict[str, object] = {"type": kind, "data": data or {}}
    if payload:
        line["payload_length"] = len(payload)
    return json.dumps(line).encode() + b"\n" + payload


async def read_event(reader: asyncio.StreamReader) -> Event | None:
    """The next event; None when the client has hung up.

    Raises:
        Closing: the bytes are no event, or too many.
    """
    try:
        line = await reader.readline()
        if not line.endswith(b"\n"):
            return None
        head = _object(line)
        data = head.get("data") or {}
        if not isinstance(data, dict):
            raise ValueError("data is not a JSON object")
        if size := _size(head, "data_length", MAX_EVENT_BYTES):
            data = {**data, **_object(await reader.readexactly(size))}
        if size := _size(head, "payload_length", MAX_PAYLOAD_BYTES):
            await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except ValueError as error:
        raise Closing(Code.PROTOCOL, fault(f"This is no event of the protocol: {error}", "bad_message")) from None
    return Event(str(head.get("type")), data)


def _object(text: bytes) -> dict[str, Any]:
    value = from_json(text)  # unlike json's parser, it refuses endless nesting
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _size(head: dict[str, Any], name: str, most: int) -> int:
    size = head.get(name) or 0
    if not isinstance(size, int) or not 0 <= size <= most:
        raise ValueError(f"{name} is a number of bytes up to {most}")
    return size


class EventWriter:
    """The MessageWriter of a connection."""

    def __init__(self) -> None:
        self.in_pieces = False
        """True while the text of the current request comes in pieces."""
        self._format: dict[str, object] = {}

    def started(self, index: int, audio: AudioOptions, sample_rate: int) -> str:
        self._format = {"rate": sample_rate, "width": 2, "channels": 1}
        return written("audio-start", self._format).decode()

    def audio(self, piece: bytes, words: SpokenWords | None) -> bytes:
        return written("audio-chunk", self._format, piece)

    def words(self, words: SpokenWords) -> None:
        """The protocol has no place for them."""

    def ended(self, summary: UtteranceSummary) -> str:
        stopped = written("synthesize-stopped") if self.in_pieces else b""
        self.in_pieces = False
        return (written("audio-stop") + stopped).decode()

    def error(self, detail: ErrorDetail) -> str:
        return written("error", {"text": detail.message, "code": detail.code}).decode()


class WyomingConnection:
    """Serves one client to its end."""

    def __init__(
        self, service: Service, tracer: Tracer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._service = service
        self._tracer = tracer
        self._reader = reader
        self._stream = writer
        config = service.config
        self._outbox = Outbox(config.live_max_unsent_bytes, config.live_stall_s)
        self._writer = EventWriter()
        self._closing: asyncio.Future[Closing] = asyncio.get_running_loop().create_future()
        self._session = LiveSession(
            service, Caller(""), self._writer, Lane(self._outbox), self._close, config.max_wait_s
        )

    def _close(self, closing: Closing) -> None:
        if not self._closing.done():
            self._closing.set_result(closing)

    async def run(self) -> None:
        request_id.set(uuid.uuid4().hex)  # of this connection's task
        activity.set("Wyoming connection")
        peer = (self._stream.get_extra_info("peername") or [""])[0]
        client_address.set(address_of(peer))
        span = begin_span(self._tracer, "wyoming")
        line = RequestLine("connection", {"path": "wyoming", "client": peer or None}, span, self._tracer)
        with line.current():
            try:
                await self._serve()
            finally:
                line.end()

    async def _serve(self) -> None:
        steps = (self._outbox.run(self._send), self._read(), self._leave_when_stopping())
        tasks = [asyncio.create_task(step) for step in steps]
        try:
            closing = await self._closing
            self._session.abandon()
            note(close_code=closing.code.value)
            if closing.detail is not None:
                note_error(closing.detail.code, closing.detail.param)
                self._outbox.put(self._writer.error(closing.detail))
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._outbox.flushed()
        finally:
            for task in tasks:
                task.cancel()
            self._session.abandon()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._outbox.waiting_bytes:
                self._stream.transport.abort()
            else:
                self._stream.close()

    async def _send(self, payload: str | bytes) -> None:
        try:
            self._stream.write(payload.encode() if isinstance(payload, str) else payload)
            await self._stream.drain()
        except ConnectionError:
            self._close(Closing(Code.NORMAL))

    async def _leave_when_stopping(self) -> None:
        """Closes the connection once the server stops, as soon as nothing is spoken."""
        await self._service.stopping.wait()
        await self._session.open_utterances.none.wait()
        self._close(Closing(Code.TRY_AGAIN_LATER, error_detail(stopping())[1]))

    # ---- reading ----------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Reads events until the client hangs up, or one of them closes the connection."""
        try:
            with ExitStack() as held:
                with self._service.metrics.admission():
                    held.enter_context(self._service.count_session())
                while (event := await self._next()) is not None:
                    await self._handle(event)
                    self._check_reader()
            self._close(Closing(Code.NORMAL))
        except Closing as closing:
            self._close(closing)
        except EngineError as error:
            self._close(Closing(Code.TRY_AGAIN_LATER, error_detail(error)[1]))
        except Exception:
            log.exception("a bug")
            self._close(BUG)

    def _check_reader(self) -> None:
        if self._outbox.waiting_bytes > self._service.config.live_max_unsent_bytes + CONTROL_BYTES:
            raise Closing(Code.POLICY, fault("The client sends without reading", "slow_reader"))

    async def _next(self) -> Event | None:
        """The next event; None if the client has hung up, or was silent for too long."""
        reading = asyncio.ensure_future(read_event(self._reader))
        silent_s = 0.0
        try:
            while True:
                before = self._session.progress
                step_s = self._service.config.live_idle_s
                if (await asyncio.wait({reading}, timeout=step_s))[0]:
                    return reading.result()
                silent_s += step_s
                if before is not None and self._session.progress == before:
                    self._session.time_out()
                elif self._session.state in (State.OPEN, State.ENDING):
                    silent_s = 0.0
                elif silent_s >= IDLE_S:
                    return None
        finally:
            reading.cancel()

    async def _handle(self, event: Event) -> None:
        try:
            match event.type:
                case "describe":
                    self._put(written("info", info_of(await voices_of(self._service))))
                case "ping":
                    self._session.count_empty()
                    self._put(written("pong", {"text": event.data.get("text")}))
                case "synthesize" if not self._writer.in_pieces:
                    synthesize = Synthesize.model_validate(event.data)
                    await self._begin(synthesize)
                    self._session.append(synthesize.text)
                    self._session.end()
                case "synthesize-start":
                    await self._begin(Start.model_validate(event.data))
                    self._writer.in_pieces = True
                case "synthesize-chunk" if self._writer.in_pieces:
                    self._session.append(Chunk.model_validate(event.data).text)
                case "synthesize-stop" if self._writer.in_pieces:
                    self._stop()
                case _:
                    self._session.count_empty()
        except ValidationError as error:
            first = error.errors()[0]
            self._session.report(validation_detail(first["loc"], first["type"], first["msg"]))
        except (ApiError, EngineError) as error:
            self._session.report(error_detail(error)[1])

    def _stop(self) -> None:
        session = self._session
        if session.state is State.READY:
            session.append("")  # a text without pieces is refused as a blank one is
        if session.state is State.OPEN:
            session.end()
        else:
            self._writer.in_pieces = False
            session.end()
            self._put(written("synthesize-stopped"))

    def _put(self, event: bytes) -> None:
        self._outbox.put(event.decode())

    async def _begin(self, start: Start) -> None:
        """Configures the session for a request.

        Raises:
            ApiError: the request cannot be served; names the field.
        """
        if self._writer.in_pieces or self._session.state in (State.OPEN, State.ENDING):
            raise ApiError(409, "A text is being spoken: its end comes first", None, "invalid_state")
        if start.text_format not in (None, "text", "ssml"):
            raise invalid("text_format", f"There is no {start.text_format!r}; there are text and ssml")
        choice = start.voice or VoiceChoice()
        with self._service.metrics.admission():
            name, language = choice.name or None, choice.language or None
            voice = pick_voice(await voices_of(self._service), name, language)
            options = SpeechOptions(
                model=voice.model,
                voice=voice.speaker,
                response_format="pcm",
                language=voice.language_name(language) if name is None else None,
            )
            plan = await plan_live(options, self._service)
        if start.text_format == "ssml":
            plan = replace(plan, text=plan.text.with_markup())
        self._session.configure(plan)


class WyomingServer:
    """Listens on a bound socket: `await start()`, and `await stop()` to end all connections.

    `announcement` lives as long as this server.
    """

    def __init__(
        self,
        service: Service,
        listener: socket.socket,
        announcement: Announcement | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._service = service
        self._tracer = tracer or NoOpTracer()
        self._listener = listener
        self._announcement = announcement
        self._acceptor: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        make_reusable(self._listener)
        self._listener.listen()
        acceptor = Acceptor(self._listener, self._protocol, lambda: len(self._connections), most_connections() // 4)
        self._acceptor = asyncio.create_task(acceptor.run())
        if self._announcement is not None:
            await self._announcement.start()

    async def stop(self) -> None:
        if self._announcement is not None:
            await self._announcement.stop()
        if self._acceptor is not None:
            self._acceptor.cancel()
            self._listener.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(MAX_EVENT_BYTES), self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this as a task"
        self._connections.add(task)
        peer = writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine that is gone says nothing
        try:
            await WyomingConnection(self._service, self._tracer, reader, writer).run()
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._connections.discard(task)
