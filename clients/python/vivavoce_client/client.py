"""AsyncClient and Client, over httpx. Their `transport` is for tests and special networks."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self, Unpack
from urllib.parse import quote

import httpx

from vivavoce_client.events import EventReader, SpeechEvent
from vivavoce_client.live import AsyncLiveSession
from vivavoce_client.live_sync import LiveSession
from vivavoce_client.live_transport import Connect, open_websocket
from vivavoce_client.protocol import (
    ConnectionFailed,
    FormFiles,
    NewVoice,
    Segment,
    SpeechOptions,
    SpokenText,
    StoredVoice,
    StreamBroken,
    Voice,
    key_headers,
    live_options,
    parse_error,
    parse_spoken_text,
    parse_stored_voice,
    parse_voices,
    speech_body,
    text_body,
)
from vivavoce_client.words import SpokenTurn, SpokenWord

DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT_TIMEOUT_S = 5.0
SILENCE_TIMEOUT_S = 120.0
"""Longest wait for the next bytes. It is long because a queued request may wait for its first ones."""
SPEECH_PATH = "/v1/audio/speech"
VOICES_PATH = "/v1/audio/voices"


@contextmanager
def _typed_errors() -> Iterator[None]:
    """Turns httpx's exceptions into the client's own, so that callers need not know httpx."""
    try:
        yield
    except httpx.ConnectError as error:
        raise ConnectionFailed(f"no server answers: {error}") from error
    except httpx.TransportError as error:
        raise StreamBroken(f"the connection broke: {error or type(error).__name__}") from error


def _error_of(response: httpx.Response, body: bytes) -> Exception:
    return parse_error(response.status_code, body, response.headers.get("retry-after"))


def voice_path(voice_id: str) -> str:
    return f"{VOICES_PATH}/{quote(voice_id, safe='')}"


class _SpeechFacts:
    """Facts about running speech: its media type, the time to the first audio, and the words heard so far."""

    def __init__(self, response: httpx.Response, asked_s: float, options: SpeechOptions) -> None:
        self._response = response
        self._asked_s = asked_s
        self.content_type: str = response.headers["content-type"]
        self._events = EventReader(self.content_type) if options.get("word_timestamps") else None
        self.first_audio_s: float | None = None
        """Seconds from the request to the first audio bytes. None until they arrive."""

    @property
    def words(self) -> tuple[SpokenWord, ...]:
        """The words so far, if the option `word_timestamps` is true."""
        return () if self._events is None else self._events.words

    @property
    def turns(self) -> tuple[SpokenTurn, ...]:
        """The turns of a dialogue, once it has ended, if the option `word_timestamps` is true."""
        return () if self._events is None else self._events.turns

    @property
    def duration_s(self) -> float | None:
        """Length of the audio in seconds, once it has ended, if the option `word_timestamps` is true."""
        return None if self._events is None else self._events.duration_s

    def _read(self, piece: bytes) -> Iterator[SpeechEvent]:
        for event in (piece,) if self._events is None else self._events.read(piece):
            if self.first_audio_s is None and isinstance(event, bytes):
                self.first_audio_s = time.monotonic() - self._asked_s
            yield event

    def _finish(self) -> None:
        if self._events is not None:
            self._events.finish()


class AsyncSpeech(_SpeechFacts):
    """Speech as it arrives. Iterate over its bytes, or over its `events`, once."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for event in self.events():
            if isinstance(event, bytes):
                yield event

    async def events(self) -> AsyncIterator[SpeechEvent]:
        """Pieces of audio, and between them the words whose times have become known."""
        with _typed_errors():
            response = self._response
            async for piece in response.aiter_raw() if self._events is None else response.aiter_bytes():
                for event in self._read(piece):
                    yield event
        self._finish()


class Speech(_SpeechFacts):
    """Speech as it arrives. Iterate over its bytes, or over its `events`, once."""

    def __iter__(self) -> Iterator[bytes]:
        return (event for event in self.events() if isinstance(event, bytes))

    def events(self) -> Iterator[SpeechEvent]:
        """Pieces of audio, and between them the words whose times have become known."""
        with _typed_errors():
            response = self._response
            for piece in response.iter_raw() if self._events is None else response.iter_bytes():
                yield from self._read(piece)
        self._finish()


class AsyncClient:
    """Talks to one Vivavoce server."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        connect: Connect = open_websocket,
    ) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._connect = connect
        timeout = httpx.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        self._http = httpx.AsyncClient(
            base_url=base_url, headers=key_headers(api_key), timeout=timeout, transport=transport
        )

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, tb)

    @asynccontextmanager
    async def stream(
        self, text: str | Sequence[Segment], voice: str | None = None, **options: Unpack[SpeechOptions]
    ) -> AsyncIterator[AsyncSpeech]:
        """Speech of a text or a dialogue while it is made. Leaving the block stops the server's work on it.

        Raises:
            ConnectionFailed, ApiError: on entering. StreamBroken: while iterating.
        """
        asked_s = time.monotonic()
        request = self._http.build_request("POST", SPEECH_PATH, json=speech_body(text, voice, options))
        with _typed_errors():
            response = await self._http.send(request, stream=True)
        try:
            if response.is_error:
                raise _error_of(response, await response.aread())
            yield AsyncSpeech(response, asked_s, options)
        finally:
            await response.aclose()

    async def speak(
        self, text: str | Sequence[Segment], voice: str | None = None, **options: Unpack[SpeechOptions]
    ) -> bytes:
        """All of the speech: the join of `stream`."""
        async with self.stream(text, voice, **options) as speech:
            return b"".join([piece async for piece in speech])

    async def spoken_text(self, text: str, **options: Unpack[SpeechOptions]) -> SpokenText:
        """The text that would be said: numbers, links and signs as words. Nothing is spoken.

        Raises:
            ConnectionFailed, ApiError: nothing in the text can be said, or an option is wrong.
        """
        return parse_spoken_text(await self._ask("POST", SPEECH_PATH, body=text_body(text, options)))

    @asynccontextmanager
    async def live(self, voice: str, **options: Unpack[SpeechOptions]) -> AsyncIterator[AsyncLiveSession]:
        """A session that says texts while they are written; it connects with its first utterance."""
        session = AsyncLiveSession(self._base_url, live_options(voice, options), self._api_key, self._connect)
        try:
            yield session
        finally:
            await session.close()

    async def voices(self) -> list[Voice]:
        return parse_voices(await self._ask("GET", VOICES_PATH))

    async def add_voice(self, voice: NewVoice) -> StoredVoice:
        """Stores a voice, which then is there by name."""
        return parse_stored_voice(await self._ask("POST", VOICES_PATH, files=voice.files()))

    async def delete_voice(self, voice_id: str) -> None:
        await self._ask("DELETE", voice_path(voice_id))

    async def _ask(
        self, method: str, path: str, files: FormFiles | None = None, body: dict[str, Any] | None = None
    ) -> bytes:
        with _typed_errors():
            response = await self._http.request(method, path, files=files, json=body)
        if response.is_error:
            raise _error_of(response, response.content)
        return response.content


class Client:
    """AsyncClient for code without asyncio."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        transport: httpx.BaseTransport | None = None,
        connect: Connect = open_websocket,
    ) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._connect = connect
        timeout = httpx.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        self._http = httpx.Client(base_url=base_url, headers=key_headers(api_key), timeout=timeout, transport=transport)

    def __enter__(self) -> Self:
        self._http.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._http.__exit__(kind, error, tb)

    @contextmanager
    def stream(
        self, text: str | Sequence[Segment], voice: str | None = None, **options: Unpack[SpeechOptions]
    ) -> Iterator[Speech]:
        """Speech of a text or a dialogue while it is made. Leaving the block stops the server's work on it.

        Raises:
            ConnectionFailed, ApiError: on entering. StreamBroken: while iterating.
        """
        asked_s = time.monotonic()
        request = self._http.build_request("POST", SPEECH_PATH, json=speech_body(text, voice, options))
        with _typed_errors():
            response = self._http.send(request, stream=True)
        try:
            if response.is_error:
                raise _error_of(response, response.read())
            yield Speech(response, asked_s, options)
        finally:
            response.close()

    def speak(self, text: str | Sequence[Segment], voice: str | None = None, **options: Unpack[SpeechOptions]) -> bytes:
        """All of the speech: the join of `stream`."""
        with self.stream(text, voice, **options) as speech:
            return b"".join(speech)

    def spoken_text(self, text: str, **options: Unpack[SpeechOptions]) -> SpokenText:
        """The text that would be said: numbers, links and signs as words. Nothing is spoken.

        Raises:
            ConnectionFailed, ApiError: nothing in the text can be said, or an option is wrong.
        """
        return parse_spoken_text(self._ask("POST", SPEECH_PATH, body=text_body(text, options)))

    @contextmanager
    def live(self, voice: str, **options: Unpack[SpeechOptions]) -> Iterator[LiveSession]:
        """A session that says texts while they are written; it connects with its first utterance."""
        options_ = live_options(voice, options)
        session = LiveSession(AsyncLiveSession(self._base_url, options_, self._api_key, self._connect))
        try:
            yield session
        finally:
            session.close()

    def voices(self) -> list[Voice]:
        return parse_voices(self._ask("GET", VOICES_PATH))

    def add_voice(self, voice: NewVoice) -> StoredVoice:
        """Stores a voice, which then is there by name."""
        return parse_stored_voice(self._ask("POST", VOICES_PATH, files=voice.files()))

    def delete_voice(self, voice_id: str) -> None:
        self._ask("DELETE", voice_path(voice_id))

    def _ask(self, method: str, path: str, files: FormFiles | None = None, body: dict[str, Any] | None = None) -> bytes:
        with _typed_errors():
            response = self._http.request(method, path, files=files, json=body)
        if response.is_error:
            raise _error_of(response, response.content)
        return response.content
