"""The Wyoming port, as Home Assistant uses it for a text that is known."""

import asyncio
import sys

from tests.clients.real.steps import follow
from tests.clients.real.wyoming.speaking import HomeAssistant, program_at


async def main(url: str) -> None:
    program = await program_at(url)
    await follow(HomeAssistant(url, program.voices[-1].name, in_pieces=False))


asyncio.run(main(*sys.argv[1:]))
