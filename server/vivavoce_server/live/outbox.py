"""Queue of outgoing messages of one WebSocket, with a limit for slow readers. It is independent of protocols."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace


class SlowReader(Exception):
    """The reader took nothing for a while although the queue was full."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message and the size of its audio. Both sizes are 0 in a message without audio.

    An interruption drops audio, and words (`is_words`) behind it.
    """

    payload: str | bytes
    audio_bytes: int = 0
    audio_s: float = 0.0
    lane: "Lane | None" = None
    is_words: bool = False

    @property
    def nbytes(self) -> int:
        return len(self.payload)


class Outbox:
    """Messages in order. Audio waits for room. Other messages are short and never wait."""

    def __init__(self, max_bytes: int, stall_s: float) -> None:
        self._max_bytes = max_bytes
        self._stall_s = stall_s
        self._waiting: deque[Outgoing] = deque()
        self.waiting_bytes = 0
        """Bytes in the queue and in the message that is being sent."""
        self._sending: Outgoing | None = None
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()

    def put(self, payload: str, lane: "Lane | None" = None, is_words: bool = False) -> None:
        self._append(Outgoing(payload, lane=lane, is_words=is_words))

    async def put_audio(self, item: Outgoing) -> None:
        """Adds audio as soon as there is room. Raises SlowReader if the reader takes nothing for `stall_s`."""
        while self.waiting_bytes and self.waiting_bytes + item.nbytes > self._max_bytes:
            self._taken.clear()
            try:
                async with asyncio.timeout(self._stall_s):
                    await self._taken.wait()
            except TimeoutError:
                raise SlowReader(f"{self.waiting_bytes} bytes wait and are not read") from None
        self._append(item)

    def _append(self, item: Outgoing) -> None:
        self._waiting.append(item)
        self.waiting_bytes += item.nbytes
        self._arrived.set()

    def drop_audio(self, lane: "Lane") -> list[Outgoing]:
        """Removes and returns the lane's audio that has not been sent, and the words behind it."""
        dropped: list[Outgoing] = []
        kept: deque[Outgoing] = deque()
        for item in self._waiting:
            # Words in front of all audio that is dropped are those of audio that was sent.
            drops = item.lane is lane and (item.audio_bytes or (item.is_words and dropped))
            (dropped if drops else kept).append(item)
        self._waiting = kept
        self.waiting_bytes -= sum(item.nbytes for item in dropped)
        self._taken.set()
        return dropped

    async def flushed(self, lane: "Lane | None" = None) -> None:
        """Returns when everything of the lane, or of all lanes, has been sent."""
        while any(lane is None or item.lane is lane for item in (*self._waiting, self._sending) if item is not None):
            self._taken.clear()
            await self._taken.wait()

    async def run(self, send: Callable[[str | bytes], Awaitable[None]]) -> None:
        """Sends messages forever. A slow reader delays `send`, and so all later messages."""
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            item = self._waiting.popleft()
            self._sending = item
            await send(item.payload)
            self._sending = None
            self.waiting_bytes -= item.nbytes
            self._taken.set()


class Lane:
    """The messages of one session in the outbox of its connection, which other sessions may share."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def beside(self) -> "Lane":
        """A lane for another session of the same connection."""
        return Lane(self._outbox)

    def put(self, payload: str) -> None:
        self._outbox.put(payload, self)

    def put_words(self, payload: str) -> None:
        """Adds a message about words of the audio before it."""
        self._outbox.put(payload, self, is_words=True)

    async def put_audio(self, item: Outgoing) -> None:
        """Adds audio as soon as there is room. Raises SlowReader if the reader takes nothing for a while."""
        await self._outbox.put_audio(replace(item, lane=self))

    def drop_audio(self) -> list[Outgoing]:
        """Removes and returns the audio of this lane that has not been sent, and the words behind it."""
        return self._outbox.drop_audio(self)

    async def flushed(self) -> None:
        """Returns when everything of this lane has been sent."""
        await self._outbox.flushed(self)
