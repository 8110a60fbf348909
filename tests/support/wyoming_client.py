"""A client of the Wyoming protocol for tests, over bare TCP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.waiting import HUNG_S


@dataclass
class WyomingEvent:
    type: str
    data: dict[str, Any]
    payload: bytes = b""


@dataclass
class Spoken:
    """Types of the events of one request, in order without repetition, and the audio."""

    kinds: list[str] = field(default_factory=list)
    audio: bytes = b""
    formats: list[dict[str, Any]] = field(default_factory=list)


class WyomingClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, kind: str, **data: object) -> None:
        """Sends an event as the package wyoming does: its data behind the line."""
        body = json.dumps(data, ensure_ascii=False).encode() if data else b""
        head = {"type": kind, "version": "1.10.2", **({"data_length": len(body)} if body else {})}
        self.writer.write(json.dumps(head).encode() + b"\n" + body)
        await self.writer.drain()

    async def receive(self) -> WyomingEvent:
        async with asyncio.timeout(HUNG_S):
            line = await self.reader.readline()
            assert line, "the server hung up"
            head = json.loads(line)
            data = head.get("data") or {}
            if size := head.get("data_length"):
                data.update(json.loads(await self.reader.readexactly(size)))
            payload = await self.reader.readexactly(head.get("payload_length") or 0)
        return WyomingEvent(head["type"], data, payload)

    async def expect(self, kind: str) -> WyomingEvent:
        event = await self.receive()
        assert event.type == kind, event
        return event

    async def until(self, kind: str) -> Spoken:
        """Receives events up to one of this type."""
        spoken = Spoken()
        while not spoken.kinds or spoken.kinds[-1] != kind:
            event = await self.receive()
            if not spoken.kinds or event.type != spoken.kinds[-1]:
                spoken.kinds.append(event.type)
            spoken.audio += event.payload
            if event.type in ("audio-start", "audio-chunk"):
                spoken.formats.append(event.data)
        return spoken

    async def hung_up(self) -> bool:
        """Waits until the server has closed the connection. A reset is an end too: it had events to read."""
        async with asyncio.timeout(HUNG_S):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True


@asynccontextmanager
async def dial_wyoming(port: int) -> AsyncIterator[WyomingClient]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield WyomingClient(reader, writer)
    finally:
        writer.close()
