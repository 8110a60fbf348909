"""Pipecat's ElevenLabs service over HTTP: a request for each sentence."""

import asyncio
import sys

import aiohttp

from tests.clients.real.pipecat.pipeline import Agent, run
from tests.clients.real.steps import settings


async def main(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        await run(Agent(settings("pipecat/elevenlabs_http", url, session=session)["tts"]))


asyncio.run(main(*sys.argv[1:]))
