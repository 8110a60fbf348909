"""AudioStream: the caller's end of an utterance. One producer (the engine's thread), one reader (asyncio code).

The engine never waits for a reader. The row of a slow reader rests (scheduler.py), and a reader that leaves cancels.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.messages import AudioChunk, Delivery, Failed, Finished, StreamEvent
from vivavoce_engine.errors import EngineError


class AudioStream:
    """Async iterator over the AudioChunks of one utterance, in order.

    Iteration ends after the last chunk, and `finished` then tells frames and tokens. It raises the EngineError that
    ended the utterance. Leave early by `cancel()`, which is safe to call at any time, from the loop's thread, more
    than once; `async with` does it on exit.
    """

    def __init__(
        self,
        utterance_id: int,
        loop: asyncio.AbstractEventLoop,
        cancel: Callable[[int], None],
        on_read: Callable[["AudioStream"], None],
    ) -> None:
        self.utterance_id = utterance_id
        self.loop = loop
        self.finished: Finished | None = None
        self._cancel = cancel
        self._on_read = on_read
        self._events: deque[StreamEvent] = deque()
        self._arrived = asyncio.Event()
        self._codes: list[NDArray[np.int16]] = []
        self._made = asyncio.Event()
        self._ended = False
        """True if the reader has had the last event, or has left."""
        self._closed = False
        """True if the last event has arrived."""
        # Each counter has one writer, so that the engine thread may read the other without a lock.
        self._frames_sent = 0
        self.frames_read = 0

    @property
    def over(self) -> bool:
        """True if nothing more will arrive: the last event has, or the reader has left."""
        return self._closed or self._ended

    @property
    def unread_frames(self) -> int:
        return self._frames_sent - self.frames_read

    def count_sent(self, frames: int) -> None:
        self._frames_sent += frames

    def cancel(self) -> None:
        """Ends the utterance unless it has ended. Its row is free before the next frame."""
        if not self._ended:
            self.abandon()
            self._arrived.set()  # a reader may wait in another task

    def end_with(self, last: EngineError | Finished) -> None:
        """Ends the utterance for its reader too, behind the pieces that have arrived. On the loop's thread.

        Nothing happens if the utterance has ended.
        """
        if self.over:
            return
        self._cancel(self.utterance_id)
        self._put(last if isinstance(last, Finished) else Failed(last))

    def abandon(self) -> None:
        """Cancels a stream whose event loop has closed, so that no reader waits for it. Engine's thread only."""
        self._ended = True
        self._cancel(self.utterance_id)

    async def all_codes(self) -> NDArray[np.int16]:
        """The codes of the whole utterance, int16 [frames, code groups], once all of it is made, read or not.

        It never returns for an utterance that fails or is cancelled; only the reader learns of that.
        """
        await self._made.wait()
        return np.concatenate(self._codes) if self._codes else np.zeros((0, 0), np.int16)

    def _put(self, event: StreamEvent) -> None:
        if self._closed:
            return  # it was on its way when the utterance was ended here
        match event:
            case AudioChunk(codes=codes):
                self._codes.append(codes)
            case Finished():
                self._closed = True
                self._made.set()
            case Failed():
                self._closed = True
        self._events.append(event)
        self._arrived.set()

    async def __anext__(self) -> AudioChunk:
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        event = self._events.popleft()
        match event:
            case AudioChunk():
                self.frames_read += event.frames
                self._on_read(self)  # the row may have rested because of unread audio
                return event
            case Finished():
                self.finished = event
                self._ended = True
                raise StopAsyncIteration
            case Failed(error=error):
                self._ended = True
                raise error

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        return self

    async def __aenter__(self) -> "AudioStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()


def deliver(deliveries: Iterable[Delivery]) -> None:
    """Hands events to streams of this process, with one wake-up for each event loop. Engine's thread only.

    An event loop that has closed has no readers left, so its streams are cancelled.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[AudioStream, StreamEvent]]] = {}
    for stream, event in deliveries:
        assert isinstance(stream, AudioStream)
        if isinstance(event, AudioChunk):
            stream.count_sent(event.frames)
        by_loop.setdefault(stream.loop, []).append((stream, event))
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, batch)
        except RuntimeError:
            if not loop.is_closed():
                raise
            for stream, _ in batch:
                stream.abandon()


def _put_all(batch: list[tuple[AudioStream, StreamEvent]]) -> None:
    for stream, event in batch:
        stream._put(event)


async def collect(stream: AudioStream) -> tuple[list[AudioChunk], Finished]:
    """The whole utterance at once: the join of the one streaming path.

    Raises:
        EngineError: the utterance failed.
    """
    chunks = [chunk async for chunk in stream]
    if stream.finished is None:
        raise EngineError("the utterance was cancelled")
    return chunks, stream.finished
