"""Pipecat's OpenAI service: a request for each sentence."""

import asyncio
import sys

from tests.clients.real.pipecat.pipeline import Agent, run
from tests.clients.real.steps import settings


async def main(url: str) -> None:
    await run(Agent(settings("pipecat/openai_tts", url)["tts"]))


asyncio.run(main(*sys.argv[1:]))
