"""LiveKit's ElevenLabs plugin as it is: sentences over a socket for all turns, a context for each."""

import asyncio
import sys

from livekit.agents import utils

from tests.clients.real.livekit.speaking import Agent
from tests.clients.real.steps import follow, settings


async def main(url: str) -> None:
    async with utils.http_context.open():
        plugin = settings("livekit/elevenlabs_ws", url)["tts"]
        await follow(Agent(plugin))
        await plugin.aclose()


asyncio.run(main(*sys.argv[1:]))
