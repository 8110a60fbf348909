"""Responses that contain speech. Each owns its speech from submission to the last byte, or until the client leaves."""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from vivavoce_engine import EngineError, Overloaded

from vivavoce_server.access import Caller
from vivavoce_server.errors import engine_error_detail
from vivavoce_server.framing import CUT_SHORT, AudioFraming, Framing
from vivavoce_server.ignored import IGNORED_HEADER, ignored_header
from vivavoce_server.jobs import SpeechJob
from vivavoce_server.json_bodies import JsonRoute
from vivavoce_server.marks import SYNTHETIC_HEADER
from vivavoce_server.metrics import UNKNOWN_MODEL, RequestOutcome, SpeechMeter, outcome_of
from vivavoce_server.reading import WARNINGS_HEADER, warnings_header
from vivavoce_server.request_lines import note, note_error
from vivavoce_server.service import Service, get_service
from vivavoce_server.speaking_rate import rate_headers
from vivavoce_server.speech import Speech
from vivavoce_server.whole_files import Part, WholeFile, send_parts, size_of

Piece = TypeVar("Piece")
HEARTBEAT_S = 15.0
STREAM_HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
"""Headers against buffering by proxies and against storing."""
CACHE_CONTROL = "private, no-cache, no-transform"
"""Header of a file with an entity tag: its client may keep it, but asks before each use; no proxy changes it."""
CACHE_HEADER = "X-Vivavoce-Cache"
CACHE_ABOUT = "While phrases are cached: the source of the speech, `hit`, `miss`, or `bypass` if it is never kept"
TAG_ABOUT = "While phrases are cached: the entity tag of a file that may be kept; events and lines have none"
ENTITY_TAG = re.compile(r'"[^"]*"')
"""The opaque part of each tag in If-None-Match, also of a weak one. * is no tag."""


class SpeechRoute(JsonRoute):
    """Counts requests for speech that end before a response exists."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def counted(request: Request) -> Response:
            service = await get_service(request)
            with service.metrics.admission():
                return await handle(request)

        return counted


class SpokenResponse(Response, ABC):
    """A response whose work ends at once when its client leaves, even between bytes."""

    def __init__(
        self, service: Service, caller: Caller, media_type: str, model: str = UNKNOWN_MODEL, cost: int = 1
    ) -> None:
        """`model` is the label under which a refusal is counted. `cost` is the number of requests to count."""
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers({**STREAM_HEADERS, **service.header_fields()})
        self.service = service
        self.caller = caller
        self._model = model
        self._cost = cost

    @abstractmethod
    async def speak(self, send: Send) -> None:
        """Sends the whole response. Cancelled when the client leaves."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as held:
            with self.service.metrics.admission(self._model):
                turn = held.enter_context(ExitStack())
                turn.enter_context(self.caller.speaking(self._cost))
                held.enter_context(self.service.count_speech())

            async def send_on(message: Message) -> None:
                """Frees the caller's turn before the last byte leaves: a client that has it may ask again at once."""
                if message["type"] == "http.response.body" and not message.get("more_body", False):
                    turn.close()
                await send(message)

            speaking = asyncio.create_task(self.speak(send_on))
            leaving = asyncio.create_task(_wait_for_disconnect(receive))
            try:
                await asyncio.wait({speaking, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if speaking.done():
                    speaking.result()
            finally:
                leaving.cancel()
                speaking.cancel()
                await asyncio.gather(leaving, speaking, return_exceptions=True)

    async def start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

    async def send_whole(self, parts: Sequence[Part], send: Send) -> None:
        """Sends a body whose length is known."""
        self.headers["Content-Length"] = str(size_of(parts))
        await self.start(send)
        await send_parts(parts, send)


class SpeechResponse(SpokenResponse):
    """Sends speech while it is made, or as a whole, which is then one piece of the framing; the file is the same.

    The status is sent once the first audio has been made, so an earlier failure is a proper error response. A later
    failure breaks the transfer off, after an error event if there are events. The client then never sees a complete
    file.
    """

    def __init__(
        self,
        service: Service,
        caller: Caller,
        job: SpeechJob,
        framing: Framing,
        whole: bool,
    ) -> None:
        super().__init__(service, caller, framing.media_type, job.model)
        self._job = job
        self._framing = framing
        self._whole = whole
        self._if_none_match: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._if_none_match = Headers(scope=scope).getlist("If-None-Match")
        await super().__call__(scope, receive, send)

    async def speak(self, send: Send) -> None:
        note(format=self._job.audio.format)
        meter = SpeechMeter(self.service.metrics, self._job.model)
        outcome: RequestOutcome = "disconnected"  # the outcome of a cancellation, unless set below
        speech: Speech | None = None
        try:
            # Reading the text, and fetching and encoding a reference, count as speech, and stop when the client leaves.
            job = await self._job.read()
            if job.audio.mark is not None:
                self.headers[SYNTHETIC_HEADER] = job.audio.mark.header()
            cast = await job.find_voices()
            if warnings := job.warnings_with(cast):
                self.headers[WARNINGS_HEADER] = warnings_header(warnings)
            if ignored := job.ignored_with(cast):
                self.headers[IGNORED_HEADER] = ignored_header(ignored)
            key = self.service.phrases.key_of(job, cast)
            if key is not None and self._is_known(key, job):
                outcome = await self._send_not_modified(send)
                return
            with await self.service.phrases.find(job, key) as phrase:
                if self.service.phrases.is_on:
                    self.headers[CACHE_HEADER] = phrase.source
                    note(cache=phrase.source)
                with Speech(job, cast, meter, self.caller.client, phrase.submit) as speech:
                    outcome = await (
                        self._send_whole(speech, send) if self._whole else self._send_stream(speech, meter, send)
                    )
        except Exception as error:
            outcome = outcome_of(error, admitted=speech is not None)
            raise
        finally:
            if speech is None or (self._whole and outcome != "completed"):  # nothing was sent
                meter.end(outcome)
            else:
                meter.end(outcome, speech.times.made_s, speech.times.made_frames, speech.times.rate)

    def _is_known(self, key: bytes, job: SpeechJob) -> bool:
        """Names the file by an entity tag. True if the client says that it has this file.

        A stream of events or of lines has none: its cuts differ from one time to the next.
        """
        if not (self._whole or isinstance(self._framing, AudioFraming)):
            return False
        tag = self.service.phrases.entity_tag(key, job, type(self._framing).__name__, self._whole, job.words_told)
        self.headers["ETag"] = tag
        self.headers["Cache-Control"] = CACHE_CONTROL
        return tag in ENTITY_TAG.findall(",".join(self._if_none_match))

    async def _send_not_modified(self, send: Send) -> RequestOutcome:
        """Answers a request for a file that the client has. To POST this is an extension: RFC 9110, 13.1.2 has it for
        GET and HEAD. But the method is POST only because the request has a body; it changes nothing here."""
        self.service.phrases.count(self._job, "not_modified")
        note(cache="not_modified")
        self.status_code = 304
        del self.headers["Content-Type"]
        await self.start(send)
        await send({"type": "http.response.body", "body": b""})
        return "completed"

    async def _send_whole(self, speech: Speech, send: Send) -> RequestOutcome:
        with WholeFile() as file:
            usage = await speech.whole(file)
            self.headers["X-Usage-Input-Tokens"] = str(usage.input_tokens)
            self.headers["X-Usage-Output-Tokens"] = str(usage.output_tokens)
            self.headers.update(rate_headers(usage.rate))
            if usage.is_cut_short:
                self.headers["X-Finish-Reason"] = CUT_SHORT
            self.headers.update(self._framing.headers(speech))
            await self.send_whole(self._framing.whole(file, speech), send)
        return "completed"

    async def _send_stream(self, speech: Speech, meter: SpeechMeter, send: Send) -> RequestOutcome:
        pieces = _framed(speech, self._framing)
        first = await anext(pieces, b"")
        await self.start(send)
        try:
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except EngineError as error:
            note_error(engine_error_detail(error)[1].code, None)
            last = self._framing.failure(error)
            if last is not None:
                await send({"type": "http.response.body", "body": last, "more_body": True})
            # Without a last body message, the ASGI server cuts the connection. Some clients pass over an event of an
            # error, and take a transfer that ends properly for complete speech.
            # After a heartbeat, the engine may still refuse the request.
            return "refused" if isinstance(error, Overloaded) and not meter.heard else "cut_off"
        await send({"type": "http.response.body", "body": self._framing.end(speech)})
        return "completed"


async def _framed(speech: Speech, framing: Framing) -> AsyncIterator[bytes]:
    """Yields the framed pieces, and the framing's heartbeat, if it has one, after each HEARTBEAT_S without a piece.

    An empty piece gets no frame.
    """
    heartbeat = framing.heartbeat
    if heartbeat is None:
        async for piece in speech.pieces():
            yield framing.piece(piece, speech) if piece else b""
        return
    async for piece_or_none in with_silences(speech.pieces()):
        if piece_or_none is None:
            yield heartbeat
        else:
            yield framing.piece(piece_or_none, speech) if piece_or_none else b""


async def with_silences(pieces: AsyncIterator[Piece]) -> AsyncIterator[Piece | None]:
    """Yields the pieces, and None for each HEARTBEAT_S without one.

    This costs a task per piece, so a bare file does without it.
    """
    while True:
        waiting: asyncio.Future[Piece | None] = asyncio.ensure_future(anext(pieces, None))
        try:
            while not (await asyncio.wait({waiting}, timeout=HEARTBEAT_S))[0]:
                yield None
            piece = waiting.result()
        finally:
            waiting.cancel()
        if piece is None:
            return
        yield piece


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
