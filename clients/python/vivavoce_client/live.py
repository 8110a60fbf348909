"""Live sessions: send text and receive speech at the same time, one utterance after the other on one connection.

async with client.live(voice="heart") as live:
    async with live.say(tokens_of_a_language_model()) as speech:
        async for piece in speech:  # 16-bit PCM as it is made
            ...

If the connection is lost before any of an utterance was heard, the session reconnects, with growing pauses, and sends
the utterance's text again. If some of it was heard, the session raises StreamBroken, so that nothing is heard twice.
"""

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from vivavoce_client.events import SpeechEvent
from vivavoce_client.live_transport import Connect, ConnectionLost, LiveConnection, open_websocket, stream_url
from vivavoce_client.protocol import ConnectionFailed, SaidPart, StreamBroken, key_headers, parse_live_error, said_by
from vivavoce_client.words import SpokenTurn, SpokenWord, parse_turns, parse_words

Text = str | Iterable[str] | AsyncIterable[str]
"""Text to speak, whole or in fragments. A plain iterable may block, because it is read on a thread of its own."""
BACKOFF_S = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Pause in seconds before each further attempt to connect."""


class AsyncUtterance:
    """Speech as it arrives, made by `AsyncLiveSession.say`. Iterate over its bytes, once."""

    def __init__(self, session: "AsyncLiveSession", text: Text) -> None:
        self.sample_rate: int | None = None
        self.first_audio_s: float | None = None
        """Seconds from the first text sent to the first audio bytes. None until they arrive."""
        self.duration_s: float | None = None
        """Length of the speech in seconds. None until it ends."""
        self.cancelled = False
        self.frames: int | None = None
        """Codec frames that were sent. None until it ends."""
        self.parts: tuple[SaidPart, ...] = ()
        """The parts of the text that were sent to their end. Known once the speech ends."""
        self.text_begun = ""
        """The next word or part, if the speech was cut while it was sent: by `cancel`, or by `max_new_tokens`."""
        self.words: tuple[SpokenWord, ...] = ()
        """The words so far, if the option `word_timestamps` is true."""
        self.turns: tuple[SpokenTurn, ...] = ()
        """The turns of a dialogue. Known once the speech ends."""
        self.spoken_text_chars: int | None = None
        """Characters of the text whose audio was sent. None until it ends, and if the server does not tell."""
        self._session = session
        self._pieces: list[str] = []
        """All text so far, which a new connection needs from the start."""
        self._text_ended = False
        self._arrived = asyncio.Event()
        self._reading = asyncio.create_task(self._read(text))
        self._feeding: asyncio.Task[None] | None = None
        self._connection: LiveConnection | None = None
        self._asked_s: float | None = None
        self._losses = 0
        self._refused = False
        self._over = False

    @property
    def text(self) -> str:
        """The text so far. The places of words are places in it."""
        return "".join(self._pieces)

    def said(self, played_s: float = math.inf) -> str:
        """Text that was said to the end of a part, once the speech has ended. An agent keeps it in its history.

        `played_s` limits it to what a player has played: seconds of this speech.
        """
        return said_by(self.parts, played_s)

    # ---- text -------------------------------------------------------------------------------------------------

    async def _read(self, text: Text) -> None:
        try:
            async for piece in _pieces_of(text):
                if piece:
                    self._pieces.append(piece)
                    self._arrived.set()
        finally:
            self._text_ended = True
            self._arrived.set()

    async def _feed(self, connection: LiveConnection) -> bool:
        """Sends the text from its start. Returns False if it was empty. The receiving side handles a loss."""
        sent = 0
        with suppress(ConnectionLost):
            while True:
                while sent < len(self._pieces):
                    self._asked_s = self._asked_s or time.monotonic()
                    await connection.send(_message("input.text", text=self._pieces[sent]))
                    sent += 1
                if self._text_ended:
                    break
                self._arrived.clear()
                await self._arrived.wait()
            await self._reading  # raises the exception of the text's source
            if sent:
                await connection.send(_message("input.done"))
        return bool(sent)

    # ---- speech -----------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for event in self.events():
            if isinstance(event, bytes):
                yield event

    async def events(self) -> AsyncIterator[SpeechEvent]:
        """Pieces of audio, and between them the words whose times have become known."""
        while not self._over:
            message = await self._receive()
            if isinstance(message, bytes):
                if self.first_audio_s is None and self._asked_s is not None:
                    self.first_audio_s = time.monotonic() - self._asked_s
                if not self.cancelled:
                    yield message
            elif message is not None and (words := self._take(message)):
                yield words

    async def _receive(self) -> bytes | dict[str, Any] | None:
        """Receives the next message. Returns None if the session has reconnected or there was no text at all."""
        try:
            if self._feeding is None:
                self._connection = await self._session._connected()
                self._feeding = asyncio.create_task(self._feed_on(self._connection))
            assert self._connection is not None
            receiving = asyncio.ensure_future(self._connection.receive())
            try:
                await asyncio.wait({receiving, self._feeding}, return_when=asyncio.FIRST_COMPLETED)
                if self._feeding.done():
                    if not self._feeding.cancelled():
                        self._feeding.result()
                    if self._over:
                        return None
                message = await receiving
            finally:
                receiving.cancel()
        except ConnectionLost as error:
            await self._lose(error)
            return None
        if isinstance(message, bytes):
            return message
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    async def _feed_on(self, connection: LiveConnection) -> None:
        if not await self._feed(connection):
            self._over = True

    async def _lose(self, error: ConnectionLost) -> None:
        await self._session._drop()
        if self.first_audio_s is not None or not error.again or self._losses == len(BACKOFF_S):
            self._over = True
            raise StreamBroken(f"the connection broke: {error}") from error
        if self._feeding is not None:
            self._feeding.cancel()
            self._feeding = None
        self.words = ()
        await self._session._sleep(BACKOFF_S[self._losses])
        self._losses += 1

    def _take(self, message: dict[str, Any]) -> tuple[SpokenWord, ...]:
        """Notes what a message tells. Returns the words in it."""
        match message["type"]:
            case "audio.start":
                self.sample_rate = message["sample_rate"]
            # Without an audio.start, these belong to an earlier, cancelled utterance.
            case "audio.words" if self.sample_rate is not None:
                words = parse_words(message["words"])
                self.words += words
                return words
            case "audio.done" if self.sample_rate is not None:
                self._note_end(message)
            case "error":
                self._refused = True
                raise parse_live_error(message)
        return ()

    def _note_end(self, done: dict[str, Any]) -> None:
        self._over = True
        self.duration_s = done["duration_ms"] / 1000
        self.cancelled = done["cancelled"]
        self.frames = done["frames"]
        self.parts = tuple(SaidPart(part["text"], part["end_ms"] / 1000) for part in done["parts"])
        self.text_begun = done.get("text_begun", "")
        self.turns = parse_turns(done.get("segments") or ())
        self.spoken_text_chars = done.get("spoken_text_chars")

    async def cancel(self) -> None:
        """Stops the speech (barge-in). Nothing more is heard, and iteration ends once the server confirms.

        `said()` then tells the text that was said.
        """
        if self._connection is None or self._feeding is None or self._over:
            self._over = True
            return
        self.cancelled = True
        self._over = self._asked_s is None  # the server has no text of it, so it will not answer
        self._feeding.cancel()
        with suppress(ConnectionLost):
            await self._connection.send(_message("input.cancel"))

    async def _leave(self) -> None:
        """Ends the utterance, so that the session is ready for the next one."""
        tasks = [task for task in (self._reading, self._feeding) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._over or self._connection is None:
            return
        self._over = True
        try:
            await self._connection.send(_message("input.cancel"))
            started, refused = self.sample_rate is not None, self._refused
            # An utterance that was opened gets one audio.done. One that was refused got an error instead.
            while self._asked_s is not None and (started or not refused):
                message = await self._connection.receive()
                parsed = json.loads(message) if isinstance(message, str) else {"type": "audio"}
                kind = parsed["type"]
                if kind == "audio.done":
                    self._note_end(parsed)
                    break
                started, refused = started or kind == "audio.start", refused or kind == "error"
        except ConnectionLost:
            await self._session._drop()


class AsyncLiveSession:
    """A live session, made by `AsyncClient.live`. One utterance at a time."""

    def __init__(
        self,
        base_url: str,
        options: dict[str, Any],
        api_key: str | None = None,
        connect: Connect = open_websocket,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._url = stream_url(base_url)
        self._headers = key_headers(api_key)
        self._options = options
        self._connect = connect
        self._sleep = sleep
        self._connection: LiveConnection | None = None
        self._utterance: AsyncUtterance | None = None

    @asynccontextmanager
    async def say(self, text: Text) -> AsyncIterator[AsyncUtterance]:
        """Speaks a text, which may still be arriving. Leaving the block stops the server's work on it.

        Raises, while iterating:
            ConnectionFailed, ApiError, StreamBroken, and the exceptions of the text's source.
        """
        if self._utterance is not None:
            raise RuntimeError("an utterance is under way: leave or cancel it first")
        self._utterance = AsyncUtterance(self, text)
        try:
            yield self._utterance
        finally:
            utterance, self._utterance = self._utterance, None
            await utterance._leave()

    async def cancel(self) -> None:
        """Stops the running utterance, if there is one. Call it from another task than the one that listens."""
        if self._utterance is not None:
            await self._utterance.cancel()

    async def configure(self, **changes: Any) -> None:  # noqa: ANN401 (SpeechOptions, or voice)
        """Changes the options of later utterances."""
        self._options = {**self._options, **changes}
        if self._connection is not None:
            with suppress(ConnectionLost):
                await self._connection.send(_message("session.config", **self._options))

    async def open(self) -> None:
        """Connects now instead of with the first utterance.

        Raises:
            ConnectionFailed: after several attempts. ApiError: the server refuses the options.
        """
        await self._connected()

    async def close(self) -> None:
        await self._drop()

    async def _connected(self) -> LiveConnection:
        if self._connection is None:
            for pause_s in (*BACKOFF_S, None):
                try:
                    self._connection = await self._open()
                    break
                except ConnectionLost as error:
                    if pause_s is None or not error.again:
                        raise ConnectionFailed(str(error)) from error
                    await self._sleep(pause_s)
        assert self._connection is not None
        return self._connection

    async def _open(self) -> LiveConnection:
        connection = await self._connect(self._url, self._headers)
        try:
            await connection.send(_message("session.config", **self._options))
            message = json.loads(await connection.receive())
            if message["type"] == "error":
                error = parse_live_error(message)
                if error.code in AGAIN_CODES:
                    raise ConnectionLost(str(error), again=True)
                raise error
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


AGAIN_CODES = frozenset({"not_serving", "queue_full"})


def _message(kind: str, **fields: object) -> str:
    return json.dumps({"type": kind, **fields}, ensure_ascii=False)


async def _pieces_of(text: Text) -> AsyncIterator[str]:
    if isinstance(text, str):
        yield text
    elif isinstance(text, AsyncIterable):
        async for piece in text:
            yield piece
    else:
        async for piece in _read_on_thread(text):
            yield piece


async def _read_on_thread(pieces: Iterable[str]) -> AsyncIterator[str]:
    """Reads on a daemon thread, because a thread that waits for standard input cannot be ended."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str | BaseException | None] = asyncio.Queue()

    def put(item: str | BaseException | None) -> None:
        with suppress(RuntimeError):  # raised if the loop is closed, so that nobody listens
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def read() -> None:
        try:
            for piece in pieces:
                put(piece)
        except BaseException as error:
            put(error)
        else:
            put(None)

    threading.Thread(target=read, name="vivavoce-text", daemon=True).start()
    while (item := await queue.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        yield item
