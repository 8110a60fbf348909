"""One request over HTTP. The audio is the body itself, or comes in server-sent events. Live text is in live_text.py."""

import base64
import json
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Protocol, Self

import httpx
from vivavoce_client.client import CONNECT_TIMEOUT_S, SPEECH_PATH
from vivavoce_client.protocol import parse_error

from vivavoce_bench.listener.live_text import LiveSpeaker
from vivavoce_bench.listener.reception import Incomplete, Reception
from vivavoce_bench.listener.servers import Target

PCM_TYPES = frozenset({"audio/pcm", "audio/l16", "audio/raw", "application/octet-stream"})
SSE_TYPE = "text/event-stream"
BODY_STARTED = "http11.send_request_body.started"
"""httpcore's event just before the first byte of a request's body is written."""


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
    """Opens a connection for each request, before time zero. Requests do not wait for or break with each other."""

    def __init__(self, target: Target, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._target = target
        self._receive = _receive_events if target.transport == "sse" else _receive_audio
        self._http = httpx.AsyncClient(
            base_url=target.url,
            headers={"Accept-Encoding": "identity", **target.headers},
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),  # the caller limits the time of a request
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, tb)

    async def speak(self, text: str, seed: int, reception: Reception) -> None:
        extensions = {"trace": _time_zero(reception)}
        body = self._target.body(text, seed)
        try:
            async with self._http.stream("POST", SPEECH_PATH, json=body, extensions=extensions) as response:
                if response.is_error:
                    error = parse_error(response.status_code, await response.aread(), None)
                    raise Incomplete(f"HTTP {response.status_code}: {error}")
                await self._receive(response, reception)
                reception.end()
        except httpx.TransportError as error:
            raise Incomplete(f"the connection failed: {type(error).__name__} {error}".rstrip()) from error
        except (ValueError, KeyError) as error:
            raise Incomplete(f"the answer cannot be read: {error!r}") from error


def _time_zero(reception: Reception) -> Callable[[str, dict[str, Any]], Any]:
    async def trace(event: str, _: dict[str, Any]) -> None:
        if event == BODY_STARTED:
            reception.mark_sent()

    return trace


def _expect(response: httpx.Response, types: frozenset[str]) -> None:
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in types:
        raise Incomplete(f"the answer is {media_type or 'of no type'}, not {' or '.join(sorted(types))}")


async def _receive_audio(response: httpx.Response, reception: Reception) -> None:
    _expect(response, PCM_TYPES)
    async for piece in response.aiter_raw():
        reception.add(piece)


async def _receive_events(response: httpx.Response, reception: Reception) -> None:
    """Reads OpenAI's events, from speech.audio.delta to speech.audio.done."""
    _expect(response, frozenset({SSE_TYPE}))
    async for data in events(response.aiter_raw(), reception.mark_byte):
        event = json.loads(data)
        match event.get("type"):
            case "speech.audio.delta":
                reception.add(base64.b64decode(event["audio"]))
            case "speech.audio.done":
                return
            case "speech.audio.error":
                raise Incomplete(f"the server broke off: {event['error']['message']}")
    raise Incomplete("the events ended without speech.audio.done")


async def events(pieces: AsyncIterator[bytes], on_bytes: Callable[[], None]) -> AsyncIterator[bytes]:
    """Yields the data of each server-sent event as soon as its last line has arrived."""
    held = b""
    data: list[bytes] = []
    async for piece in pieces:
        on_bytes()
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"\n".join(data)
                data = []
