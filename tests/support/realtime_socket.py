"""A client of the Realtime socket for tests, over the package `websockets`."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.support.live_server import LiveServer
from tests.support.live_socket import close_code_of
from tests.support.waiting import HUNG_S

Event = dict[str, Any]


@dataclass
class Heard:
    """The events of one response, and their audio."""

    events: list[Event] = field(default_factory=list)
    audio: bytes = b""

    @property
    def kinds(self) -> list[str]:
        """Types in order, each where it comes first. The number of the deltas depends on time."""
        return list(dict.fromkeys(event["type"] for event in self.events))

    @property
    def transcript(self) -> str:
        """The text that deltas told."""
        deltas = [event for event in self.events if event["type"] == "response.output_audio_transcript.delta"]
        return "".join(delta["delta"] for delta in deltas)

    @property
    def response(self) -> Event:
        response: Event = self.events[-1]["response"]
        return response


class Realtime:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, kind: str, **fields: object) -> None:
        await self.connection.send(json.dumps({"type": kind, **fields}))

    async def receive(self) -> Event:
        async with asyncio.timeout(HUNG_S):
            event: Event = json.loads(await self.connection.recv())
        assert event["event_id"]
        return event

    async def expect(self, kind: str) -> Event:
        """Receives the next event, which must be of this type."""
        event = await self.receive()
        assert event["type"] == kind, event
        return event

    async def error(self) -> Event:
        error: Event = (await self.expect("error"))["error"]
        assert set(error) == {"message", "type", "param", "code", "event_id"}
        return error

    async def say(self, text: str, **response: object) -> None:
        """Asks for the speech of a text, as Open WebUI does."""
        part = {"type": "input_text", "text": text}
        message = {"type": "message", "role": "user", "content": [part]}
        await self.send("response.create", response={"conversation": "none", "input": [message], **response})

    async def add(self, text: str, **fields: object) -> str:
        """Adds a text of the user to the conversation. Returns its id."""
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **fields}
        await self.send("conversation.item.create", item=item)
        await self.expect("conversation.item.added")
        item_id: str = (await self.expect("conversation.item.done"))["item"]["id"]
        return item_id

    async def until(self, kind: str) -> Heard:
        """Receives events up to one of this type."""
        heard = Heard()
        while not heard.events or heard.events[-1]["type"] != kind:
            heard.events.append(await self.receive())
            if heard.events[-1]["type"] == "response.output_audio.delta":
                heard.audio += base64.b64decode(heard.events[-1]["delta"])
        return heard

    async def response(self) -> Heard:
        return await self.until("response.done")

    async def close_code(self) -> int:
        """Skips the remaining events and returns the close code."""
        return await close_code_of(self.connection)


@asynccontextmanager
async def dial_realtime(server: LiveServer, query: str = "", **options: Any) -> AsyncIterator[Realtime]:
    url = server.url.replace("http", "ws") + "/v1/realtime" + query
    async with connect(url, proxy=None, **options) as connection:
        yield Realtime(connection)
