"""ElevenLabs' package, whose calls block, in a thread beside the session."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Generator, Iterator

from tests.clients.real.steps import Client, Sound, Words

FORMAT, RATE_HZ = "pcm_24000", 24000


class Blocking(Client):
    """A call of the package for each turn. An interruption closes what it returned."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._is_interrupted = False
        self._turn: asyncio.Task[None] | None = None

    @abstractmethod
    def pieces(self, words: Words) -> Generator[bytes]:
        """PCM of these words. It is called in the thread."""

    async def say(self, words: Words, sound: Sound) -> None:
        self._is_interrupted = False
        self._turn = asyncio.create_task(asyncio.to_thread(self._speak, words, sound))
        await asyncio.shield(self._turn)  # a call in a thread ends by itself alone

    async def interrupt(self) -> None:
        assert self._turn is not None
        self._is_interrupted = True
        await asyncio.wait([self._turn])

    def one_by_one(self, words: Words) -> Iterator[str]:
        """The words, for a thread."""
        coming = aiter(words)
        while (word := asyncio.run_coroutine_threadsafe(_next(coming), self._loop).result()) is not None:
            yield word

    def _speak(self, words: Words, sound: Sound) -> None:
        pieces = self.pieces(words)
        for piece in pieces:
            if self._is_interrupted:
                break
            self._loop.call_soon_threadsafe(sound.add, piece, RATE_HZ)
        pieces.close()


async def _next(words: AsyncIterator[str]) -> str | None:
    return await anext(words, None)
