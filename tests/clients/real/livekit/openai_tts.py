"""LiveKit's OpenAI plugin: a request for each sentence, for each turn by another name of a model.

The name decides whether the plugin asks for events or for audio.
"""

import asyncio
import sys
from itertools import cycle

from livekit.agents import tts, utils

from tests.clients.real.livekit.speaking import Agent
from tests.clients.real.steps import Sound, Words, follow, settings

MODELS = ("gpt-4o-mini-tts", "tts-1", "fake")


class Changing(Agent):
    """A plugin that is given the next name before each turn."""

    def __init__(self, plugin: tts.TTS) -> None:
        super().__init__(tts.StreamAdapter(tts=plugin))
        plugin.on("error", lambda event: self.errors.append(str(event)))
        self._wrapped = plugin
        self._models = cycle(MODELS)

    async def say(self, words: Words, sound: Sound) -> None:
        self._wrapped.update_options(model=next(self._models))
        await super().say(words, sound)


async def main(url: str) -> None:
    async with utils.http_context.open():
        plugin = settings("livekit/openai_tts", url)["tts"]
        await follow(Changing(plugin))
        await plugin.aclose()


asyncio.run(main(*sys.argv[1:]))
