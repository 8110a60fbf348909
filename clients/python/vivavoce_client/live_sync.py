"""LiveSession: AsyncLiveSession for code without asyncio. The session runs on a thread of its own."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

from vivavoce_client.events import SpeechEvent
from vivavoce_client.live import AsyncLiveSession, AsyncUtterance, Text
from vivavoce_client.protocol import SaidPart
from vivavoce_client.words import SpokenTurn, SpokenWord

T = TypeVar("T")


class _LoopThread:
    """A thread with an event loop, which runs until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vivavoce-live", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # such as Ctrl+C: the work on the other thread has to end too
            future.cancel()
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Utterance:
    """Speech as it arrives. Iterate over its bytes, once."""

    def __init__(self, thread: _LoopThread, utterance: AsyncUtterance) -> None:
        self._thread = thread
        self._utterance = utterance

    def __iter__(self) -> Iterator[bytes]:
        return (event for event in self.events() if isinstance(event, bytes))

    def events(self) -> Iterator[SpeechEvent]:
        """Pieces of audio, and between them the words whose times have become known."""
        events = self._utterance.events()
        while (event := self._thread.run(_next(events))) is not None:
            yield event

    @property
    def text(self) -> str:
        """The text so far. The places of words are places in it."""
        return self._utterance.text

    @property
    def words(self) -> tuple[SpokenWord, ...]:
        """The words so far, if the option `word_timestamps` is true."""
        return self._utterance.words

    @property
    def turns(self) -> tuple[SpokenTurn, ...]:
        """The turns of a dialogue. Known once the speech ends."""
        return self._utterance.turns

    @property
    def spoken_text_chars(self) -> int | None:
        """Characters of the text whose audio was sent. None until it ends, and if the server does not tell."""
        return self._utterance.spoken_text_chars

    @property
    def sample_rate(self) -> int | None:
        return self._utterance.sample_rate

    @property
    def first_audio_s(self) -> float | None:
        """Seconds from the first text sent to the first audio bytes. None until they arrive."""
        return self._utterance.first_audio_s

    @property
    def duration_s(self) -> float | None:
        """Length of the speech in seconds. None until it ends."""
        return self._utterance.duration_s

    @property
    def cancelled(self) -> bool:
        return self._utterance.cancelled

    @property
    def frames(self) -> int | None:
        """Codec frames that were sent. None until it ends."""
        return self._utterance.frames

    @property
    def parts(self) -> tuple[SaidPart, ...]:
        """The parts of the text that were sent to their end. Known once the speech ends."""
        return self._utterance.parts

    @property
    def text_begun(self) -> str:
        """The next word or part, if the speech was cut while it was sent: by `cancel`, or by `max_new_tokens`."""
        return self._utterance.text_begun

    def said(self, played_s: float = math.inf) -> str:
        """Text that was said to the end of a part, once the speech has ended. An agent keeps it in its history.

        `played_s` limits it to what a player has played: seconds of this speech.
        """
        return self._utterance.said(played_s)


async def _next(events: AsyncIterator[SpeechEvent]) -> SpeechEvent | None:
    return await anext(events, None)


async def _enter(manager: AbstractAsyncContextManager[T]) -> T:
    return await manager.__aenter__()


async def _exit(manager: AbstractAsyncContextManager[Any]) -> None:
    await manager.__aexit__(None, None, None)


class LiveSession:
    """A live session, made by `Client.live`. One utterance at a time. Any thread may call `cancel`."""

    def __init__(self, session: AsyncLiveSession) -> None:
        self._session = session
        self._thread = _LoopThread()

    @contextmanager
    def say(self, text: Text) -> Iterator[Utterance]:
        """Speaks a text, which may still be arriving. Leaving the block stops the server's work on it."""
        manager = self._session.say(text)
        utterance = self._thread.run(_enter(manager))
        try:
            yield Utterance(self._thread, utterance)
        finally:
            self._thread.run(_exit(manager))

    def cancel(self) -> None:
        """Stops the running utterance, if there is one."""
        self._thread.run(self._session.cancel())

    def configure(self, **changes: Any) -> None:  # noqa: ANN401 (SpeechOptions, or voice)
        """Changes the options of later utterances."""
        self._thread.run(self._session.configure(**changes))

    def open(self) -> None:
        """Connects now instead of with the first utterance."""
        self._thread.run(self._session.open())

    def close(self) -> None:
        self._thread.run(self._session.close())
        self._thread.close()
