"""A client of the live socket for tests, over the package `websockets`."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from vivavoce_engine.fake_runner import tone
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.live_server import LiveServer
from tests.support.waiting import HUNG_S

PATH = "/v1/audio/speech/stream"


def pcm_of(seed: int, frames: int) -> bytes:
    """PCM of a fake utterance."""
    return np.rint(tone(seed, 0, frames) * 32767).astype("<i2").tobytes()


async def close_code_of(connection: ClientConnection) -> int:
    """Skips the remaining messages and returns the close code."""
    async with asyncio.timeout(HUNG_S):
        with suppress(ConnectionClosed):
            while True:
                await connection.recv()
    assert connection.close_code is not None
    return connection.close_code


@dataclass
class Utterance:
    """One utterance: the messages from audio.start to audio.done."""

    start: dict[str, Any]
    audio: bytes
    done: dict[str, Any]


class Socket:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, kind: str, **fields: object) -> None:
        await self.connection.send(json.dumps({"type": kind, **fields}))

    async def configure(self, **fields: object) -> dict[str, Any]:
        await self.send("session.config", **{"voice": "heart", "seed": 5, **fields})
        return await self.expect("session.created")

    async def say(self, *fragments: str) -> None:
        for text in fragments:
            await self.send("input.text", text=text)

    async def receive(self) -> dict[str, Any] | bytes:
        async with asyncio.timeout(HUNG_S):
            message = await self.connection.recv()
        if isinstance(message, bytes):
            return message
        parsed: dict[str, Any] = json.loads(message)
        return parsed

    async def expect(self, kind: str) -> dict[str, Any]:
        """Receives the next message, which must be of this kind."""
        message = await self.receive()
        assert isinstance(message, dict), f"{len(message)} bytes of audio came instead of {kind}"
        assert message["type"] == kind, message
        return message

    async def error(self) -> dict[str, Any]:
        message = await self.expect("error")
        error: dict[str, Any] = message["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    async def audio(self) -> bytes:
        """Receives the next message, which must be audio."""
        message = await self.receive()
        assert isinstance(message, bytes), message
        return message

    async def rest(self) -> tuple[bytes, dict[str, Any]]:
        """Receives the audio up to the end of the utterance, and its audio.done."""
        audio = b""
        while isinstance(message := await self.receive(), bytes):
            audio += message
        assert message["type"] == "audio.done", message
        return audio, message

    async def utterance(self) -> Utterance:
        start = await self.expect("audio.start")
        audio, done = await self.rest()
        assert done["utterance_index"] == start["utterance_index"]
        assert done["total_bytes"] == len(audio)
        return Utterance(start, audio, done)

    async def close_code(self) -> int:
        """Skips the remaining messages and returns the close code."""
        return await close_code_of(self.connection)


@asynccontextmanager
async def dial(server: LiveServer | str, query: str = "", **options: Any) -> AsyncIterator[Socket]:
    """Connects to a server, given itself or its URL."""
    base = server if isinstance(server, str) else server.url
    async with connect(base.replace("http", "ws") + PATH + query, proxy=None, max_size=2**24, **options) as connection:
        yield Socket(connection)
