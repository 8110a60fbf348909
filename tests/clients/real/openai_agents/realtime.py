"""The Realtime runner of openai-agents: says the user's last message, interrupted as by a user who speaks."""

import asyncio
import sys
from typing import Any

from tests.clients.real.steps import ANSWER_S, Client, Sound, Words, awaited_settings, follow

RATE_HZ = 24000


class Reader(Client):
    """A session of the runner."""

    def __init__(self, session: Any) -> None:
        super().__init__()
        self._session = session
        self._sound = Sound()
        self._over = asyncio.Event()

    async def listen(self) -> None:
        """Takes the events of the session until it is closed."""
        async for event in self._session:
            if event.type == "audio":
                self._sound.add(event.audio.data, RATE_HZ)
            elif event.type == "agent_end":
                self._over.set()
            elif event.type == "error":
                self.errors.append(str(event.error))

    async def say(self, words: Words, sound: Sound) -> None:
        self._sound = sound
        self._over.clear()
        await self._session.send_message(words.whole())
        await self._over.wait()

    async def interrupt(self) -> None:
        """Waits for the server's answer: audio that was under way comes before it."""
        await self._session.interrupt()
        await asyncio.wait_for(self._over.wait(), ANSWER_S)


async def main(url: str) -> None:
    session = (await awaited_settings("openai_agents/realtime", url))["session"]
    async with session:
        reader = Reader(session)
        listening = asyncio.create_task(reader.listen())
        await follow(reader)
        listening.cancel()


asyncio.run(main(*sys.argv[1:]))
