"""Pipecat's ElevenLabs service as it is: sentences over a socket for all turns, a context for each."""

import asyncio
import sys

from tests.clients.real.pipecat.pipeline import Agent, run
from tests.clients.real.steps import settings


async def main(url: str) -> None:
    agent = Agent(settings("pipecat/elevenlabs_ws", url)["tts"])
    agent.interrupted_after_text = True
    await run(agent)


asyncio.run(main(*sys.argv[1:]))
