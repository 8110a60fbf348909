"""The Wyoming port, as Home Assistant uses it for the words of a language model."""

import asyncio
import sys

from tests.clients.real.steps import follow
from tests.clients.real.wyoming.speaking import HomeAssistant, program_at


async def main(url: str) -> None:
    program = await program_at(url)
    assert program.supports_synthesize_streaming
    await follow(HomeAssistant(url, program.voices[0].name, in_pieces=True))


asyncio.run(main(*sys.argv[1:]))
