"""Home Assistant's side of the Wyoming protocol, with the package that it uses: a connection for each text."""

import asyncio
from urllib.parse import urlsplit

from wyoming.audio import AudioChunk, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Eventable
from wyoming.info import Describe, Info, TtsProgram
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

from tests.clients.real.steps import Client, Sound, Words


def dialled(url: str) -> AsyncTcpClient:
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    return AsyncTcpClient(address.hostname, address.port)


async def program_at(url: str) -> TtsProgram:
    """The first installed program, as Home Assistant chooses it at set-up."""
    async with dialled(url) as connection:
        await connection.write_event(Describe().event())
        event = await connection.read_event()
        assert event is not None
        return next(program for program in Info.from_event(event).tts if program.installed)


class HomeAssistant(Client):
    """`in_pieces` sends the words as they come, else a text is one event."""

    def __init__(self, url: str, voice: str, in_pieces: bool) -> None:
        super().__init__()
        self._url = url
        self._voice = SynthesizeVoice(name=voice)
        self._in_pieces = in_pieces
        self._turn: asyncio.Task[None] | None = None

    async def say(self, words: Words, sound: Sound) -> None:
        self._turn = asyncio.create_task(self._speak(words, sound))
        await asyncio.wait([self._turn])
        if not self._turn.cancelled():
            await self._turn

    async def interrupt(self) -> None:
        """Hangs up, since the protocol has no other way."""
        assert self._turn is not None
        self._turn.cancel()
        await asyncio.wait([self._turn])

    async def _speak(self, words: Words, sound: Sound) -> None:
        async with dialled(self._url) as connection:
            if not self._in_pieces:
                await connection.write_event(Synthesize(words.whole(), voice=self._voice).event())
                await self._hear(connection, sound, AudioStop)
                return
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send(connection, words))
                tasks.create_task(self._hear(connection, sound, SynthesizeStopped))

    async def _send(self, connection: AsyncTcpClient, words: Words) -> None:
        await connection.write_event(SynthesizeStart(voice=self._voice).event())
        async for word in words:
            await connection.write_event(SynthesizeChunk(word).event())
        # The whole text, for servers that do not take it in pieces.
        await connection.write_event(Synthesize(words.whole(), voice=self._voice).event())
        await connection.write_event(SynthesizeStop().event())

    async def _hear(self, connection: AsyncTcpClient, sound: Sound, last: type[Eventable]) -> None:
        while (event := await connection.read_event()) is not None:
            if AudioChunk.is_type(event.type):
                chunk = AudioChunk.from_event(event)
                sound.add(chunk.audio, chunk.rate)
            elif Error.is_type(event.type):
                self.errors.append(Error.from_event(event).text)
            elif last.is_type(event.type):
                return
        self.errors.append("the server hung up")
