"""Pipecat's ElevenLabs service: a socket for all turns, a context for each."""

import asyncio
import sys

from tests.clients.real.pipecat.pipeline import Agent, run
from tests.clients.real.steps import settings


async def main(url: str) -> None:
    await run(Agent(settings("pipecat/elevenlabs_ws", url)["tts"]))


asyncio.run(main(*sys.argv[1:]))
