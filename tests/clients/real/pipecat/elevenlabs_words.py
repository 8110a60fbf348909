"""Pipecat's ElevenLabs service without its own sentences: each word is sent as it comes."""

import asyncio
import sys

from tests.clients.real.pipecat.pipeline import Agent, run
from tests.clients.real.steps import ONE_SENTENCE, settings


async def main(url: str) -> None:
    await run(Agent(settings("pipecat/elevenlabs_words", url)["tts"]), ONE_SENTENCE)


asyncio.run(main(*sys.argv[1:]))
