"""LiveKit's ElevenLabs plugin without auto_mode: each word is sent as it comes."""

import asyncio
import sys

from livekit.agents import utils

from tests.clients.real.livekit.speaking import Agent
from tests.clients.real.steps import ONE_SENTENCE, follow, settings


async def main(url: str) -> None:
    async with utils.http_context.open():
        plugin = settings("livekit/elevenlabs_words", url)["tts"]
        await follow(Agent(plugin), ONE_SENTENCE)
        await plugin.aclose()


asyncio.run(main(*sys.argv[1:]))
