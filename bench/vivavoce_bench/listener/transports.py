"""One request over HTTP. The audio is the body itself, or comes in server-sent events. Live text is in live_text.py."""

import base64
import json
from types import TracebackType
from typing import Protocol, Self

from vivavoce_client.client import SPEECH_PATH
from vivavoce_client.protocol import parse_error

from vivavoce_bench.listener.exchange import Answer, Exchange, HttpExchange
from vivavoce_bench.listener.live_text import LiveSpeaker
from vivavoce_bench.listener.reception import Incomplete, Reception
from vivavoce_bench.listener.servers import Target

PCM_TYPES = frozenset({"audio/pcm", "audio/l16", "audio/raw", "application/octet-stream"})
SSE_TYPE = "text/event-stream"
FIRST_ERROR_STATUS = 400


class Speaker(Protocol):
    """Sends requests to a server and records the answers."""

    async def speak(self, text: str, seed: int, reception: Reception) -> None:
        """Sends one request and records its answer in `reception`. Raises Incomplete if the speech is incomplete."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...


def open_speaker(target: Target) -> Speaker:
    return LiveSpeaker(target) if target.transport == "websocket" else HttpSpeaker(target)


class HttpSpeaker:
    """Requests do not wait for or break with each other."""

    def __init__(self, target: Target, exchange: Exchange | None = None) -> None:
        self._target = target
        self._answer: type[_Audio] = _Events if target.transport == "sse" else _Audio
        self._exchange = exchange or HttpExchange(target.url, SPEECH_PATH, target.headers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        pass

    async def speak(self, text: str, seed: int, reception: Reception) -> None:
        body = json.dumps(self._target.body(text, seed), ensure_ascii=False).encode()
        answer: Answer = self._answer(reception)
        try:
            await self._exchange.send(body, answer)
        except (ValueError, KeyError) as error:
            raise Incomplete(f"the answer cannot be read: {error!r}") from error


class _Audio:
    """An answer whose body is the audio. The body of a refusal is its reason."""

    types = PCM_TYPES

    def __init__(self, reception: Reception) -> None:
        self._reception = reception
        self._refused: int | None = None
        self._reason = b""

    def sent(self) -> None:
        self._reception.mark_sent()

    def head(self, status: int, content_type: str) -> None:
        media_type = content_type.partition(";")[0].strip().lower()
        if status >= FIRST_ERROR_STATUS:
            self._refused = status
        elif media_type not in self.types:
            told = " or ".join(sorted(self.types))
            raise Incomplete(f"the answer is {media_type or 'of no type'}, not {told}")

    def data(self, piece: bytes) -> None:
        if self._refused is not None:
            self._reason += piece
        else:
            self._take(piece)

    def end(self) -> None:
        if self._refused is not None:
            raise Incomplete(f"HTTP {self._refused}: {parse_error(self._refused, self._reason, None)}")
        self._finish()

    def _take(self, piece: bytes) -> None:
        self._reception.add(piece)

    def _finish(self) -> None:
        self._reception.end()


class _Events(_Audio):
    """An answer of OpenAI's events, from speech.audio.delta to speech.audio.done."""

    types = frozenset({SSE_TYPE})

    def __init__(self, reception: Reception) -> None:
        super().__init__(reception)
        self._events = EventReader()
        self._done = False

    def _take(self, piece: bytes) -> None:
        self._reception.mark_byte()
        for data in self._events.read(piece):
            event = json.loads(data)
            match event.get("type"):
                case "speech.audio.delta":
                    self._reception.add(base64.b64decode(event["audio"]))
                case "speech.audio.done":
                    self._done = True
                    self._reception.end()
                case "speech.audio.error":
                    raise Incomplete(f"the server broke off: {event['error']['message']}")

    def _finish(self) -> None:
        if not self._done:
            raise Incomplete("the events ended without speech.audio.done")


class EventReader:
    """Reads server-sent events from bytes that are cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def read(self, piece: bytes) -> list[bytes]:
        """Returns the data of each event whose last line has arrived with this piece."""
        complete = []
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                complete.append(b"\n".join(self._data))
                self._data = []
        return complete
