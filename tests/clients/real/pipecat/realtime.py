"""Pipecat's Realtime service. It sends the first turn itself, from its context, and later ones by client events."""

import asyncio
import sys

from pipecat.frames.frames import LLMContextFrame
from pipecat.processors.aggregators.llm_context import LLMContext

from tests.clients.real.pipecat.pipeline import Agent, run
from tests.clients.real.steps import Sound, Words, settings


class Reader(Agent):
    """A service that says what the user wrote."""

    def __init__(self, url: str) -> None:
        super().__init__(settings("pipecat/realtime", url)["service"])
        self._url = url
        self._begun = False

    async def say(self, words: Words, sound: Sound) -> None:
        self.listen(sound)
        text = words.whole()
        if self._begun:
            names = settings("pipecat/realtime_turn", self._url, text=text)
            for event in names["turn"]:
                await self.service.send_client_event(event)
        else:
            self._begun = True
            await self.task.queue_frame(LLMContextFrame(LLMContext([{"role": "user", "content": text}])))
        await self.listener.over.wait()


async def main(url: str) -> None:
    await run(Reader(url))


asyncio.run(main(*sys.argv[1:]))
