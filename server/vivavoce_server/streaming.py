"""Responses that speak: each owns its speech from submission to the last byte, or to the listener's leaving."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from vivavoce_engine import EngineError, Overloaded

from vivavoce_server.access import Caller
from vivavoce_server.framing import Framing
from vivavoce_server.jobs import SpeechJob
from vivavoce_server.metrics import UNKNOWN_MODEL, RequestOutcome, SpeechMeter, outcome_of
from vivavoce_server.service import Service, get_service
from vivavoce_server.speech import Speech

log = logging.getLogger(__name__)

HEARTBEAT_S = 15.0
STREAM_HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
"""Proxies must not collect the stream, and nobody must keep it."""


class SpeechRoute(APIRoute):
    """Counts requests for speech that end before there is a response to speak."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def counted(request: Request) -> Response:
            service = await get_service(request)
            with service.metrics.admission():
                return await handle(request)

        return counted


class SpokenResponse(Response, ABC):
    """A response whose work ends at once when its client leaves, whether bytes flow or not."""

    def __init__(
        self, service: Service, caller: Caller, media_type: str, model: str = UNKNOWN_MODEL, cost: int = 1
    ) -> None:
        """`model` is whom a refusal is counted for; `cost`, for how many requests this one counts."""
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers(STREAM_HEADERS)
        self.service = service
        self.caller = caller
        self._model = model
        self._cost = cost

    @abstractmethod
    async def speak(self, send: Send) -> None:
        """Sends the whole response; cancelled when the client leaves."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as held:
            with self.service.metrics.admission(self._model):
                turn = held.enter_context(ExitStack())
                turn.enter_context(self.caller.speaking(self._cost))
                held.enter_context(self.service.count_speech())

            async def send_on(message: Message) -> None:
                """Whoever has the last byte may ask again at once: its turn ends before that is sent."""
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


class SpeechResponse(SpokenResponse):
    """Sends speech as it is made, or whole, which is the same bytes joined.

    No status goes out before the first audio is there, so a failure until then is an honest error response. A
    failure later ends events with an error event and breaks a bare file off: the client sees a transfer that did not
    end, never a complete file.
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

    async def speak(self, send: Send) -> None:
        meter = SpeechMeter(self.service.metrics, self._job.model)
        outcome: RequestOutcome = "disconnected"  # if nothing below says otherwise, it was cancelled
        admitted = False
        try:
            # Fetching and encoding a reference count as speech, and end when the client leaves.
            options = await self._job.find_voice()
            with Speech(self._job, options, meter, self.caller.name) as speech:
                admitted = True
                outcome = await (
                    self._send_whole(speech, send) if self._whole else self._send_stream(speech, meter, send)
                )
        except Exception as error:
            outcome = outcome_of(error, admitted)
            raise
        finally:
            meter.end(outcome)

    async def _send_whole(self, speech: Speech, send: Send) -> RequestOutcome:
        body, usage = await speech.whole()
        self.headers["Content-Length"] = str(len(body))
        self.headers["X-Usage-Input-Tokens"] = str(usage.input_tokens)
        self.headers["X-Usage-Output-Tokens"] = str(usage.output_tokens)
        await self.start(send)
        await send({"type": "http.response.body", "body": body})
        return "completed"

    async def _send_stream(self, speech: Speech, meter: SpeechMeter, send: Send) -> RequestOutcome:
        pieces = _framed(speech.pieces(), self._framing)
        first = await anext(pieces, b"")
        await self.start(send)
        try:
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except EngineError as error:
            log.error("speech broke off: %s", error)
            last = self._framing.failure(error)
            if last is not None:
                await send({"type": "http.response.body", "body": last})
            # Without a last body message, the ASGI server cuts the connection.
            # What is told after a heartbeat may still be that the wait was in vain.
            return "refused" if isinstance(error, Overloaded) and not meter.heard else "cut_off"
        await send({"type": "http.response.body", "body": self._framing.end(speech.usage)})
        return "completed"


async def _framed(pieces: AsyncIterator[bytes], framing: Framing) -> AsyncIterator[bytes]:
    """Pieces in their frames, and the heartbeat, if there is one, whenever no piece came for a while."""
    heartbeat = framing.heartbeat
    if heartbeat is None:
        async for piece in pieces:
            yield framing.piece(piece)
        return
    async for piece_or_none in _with_silences(pieces):
        yield heartbeat if piece_or_none is None else framing.piece(piece_or_none)


async def _with_silences(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes | None]:
    """The pieces, and None for each HEARTBEAT_S without one. Costs a task a piece, so audio alone goes without."""
    while True:
        waiting = asyncio.ensure_future(anext(pieces, None))
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
