"""The response that speaks: it owns an utterance from submission to the last byte, or to the listener's leaving."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from vivavoce_engine import AudioStream, EngineError

from vivavoce_server.audio import SpeechEncoder, encode
from vivavoce_server.framing import Framing
from vivavoce_server.service import Service

log = logging.getLogger(__name__)

HEARTBEAT_S = 15.0
STREAM_HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
"""Proxies must not collect the stream, and nobody must keep it."""


class SpeechResponse(Response):
    """Sends an utterance as it is made, or whole, which is the same bytes joined.

    No status goes out before the first audio is there, so a failure until then is an honest error response. A
    failure later ends events with an error event and breaks a bare file off: the client sees a transfer that did not
    end, never a complete file.
    """

    def __init__(
        self,
        service: Service,
        submit: Callable[[], AudioStream],
        encoder: SpeechEncoder,
        framing: Framing,
        whole: bool,
    ) -> None:
        self.status_code = 200
        self.media_type = framing.media_type
        self.background = None
        self.init_headers(STREAM_HEADERS)
        self._service = service
        self._submit = submit
        self._encoder = encoder
        self._framing = framing
        self._whole = whole

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._service.count_speech():
            async with self._submit() as stream:
                speak = self._send_whole if self._whole else self._send_stream
                speaking = asyncio.create_task(speak(stream, send))
                leaving = asyncio.create_task(_wait_for_disconnect(receive))
                try:
                    await asyncio.wait({speaking, leaving}, return_when=asyncio.FIRST_COMPLETED)
                    if speaking.done():
                        speaking.result()
                finally:
                    leaving.cancel()
                    speaking.cancel()
                    await asyncio.gather(leaving, speaking, return_exceptions=True)

    async def _send_whole(self, stream: AudioStream, send: Send) -> None:
        body = self._encoder.complete(b"".join([piece async for piece in encode(stream, self._encoder)]))
        self.headers["Content-Length"] = str(len(body))
        if stream.finished is not None:
            self.headers["X-Usage-Input-Tokens"] = str(stream.finished.text_tokens)
            self.headers["X-Usage-Output-Tokens"] = str(stream.finished.frames)
        await self._start(send)
        await send({"type": "http.response.body", "body": body})

    async def _send_stream(self, stream: AudioStream, send: Send) -> None:
        pieces = _framed(encode(stream, self._encoder), self._framing)
        first = await anext(pieces, b"")
        await self._start(send)
        try:
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except EngineError as error:
            log.error("utterance %d broke off: %s", stream.utterance_id, error)
            last = self._framing.failure(error)
            if last is None:
                return  # without the last body message, which makes the ASGI server cut the connection
        else:
            last = b"" if stream.finished is None else self._framing.end(stream.finished)
        await send({"type": "http.response.body", "body": last})

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})


async def _framed(pieces: AsyncIterator[bytes], framing: Framing) -> AsyncIterator[bytes]:
    """Pieces in their frames, and the heartbeat, if there is one, whenever no piece came for a while."""
    timeout_s = HEARTBEAT_S if framing.heartbeat else None
    while True:
        waiting = asyncio.ensure_future(anext(pieces, None))
        try:
            while not (await asyncio.wait({waiting}, timeout=timeout_s))[0]:
                assert framing.heartbeat is not None
                yield framing.heartbeat
            piece = waiting.result()
        finally:
            waiting.cancel()
        if piece is None:
            return
        yield framing.piece(piece)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
