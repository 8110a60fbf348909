"""`stream` of ElevenLabs' package: a request for each text."""

import asyncio
import sys
from collections.abc import Generator

from elevenlabs import ElevenLabs

from tests.clients.real.elevenlabs.speaking import FORMAT, Blocking
from tests.clients.real.steps import Words, follow, settings


class Stream(Blocking):
    def __init__(self, client: ElevenLabs) -> None:
        super().__init__()
        self._client = client

    def pieces(self, words: Words) -> Generator[bytes]:
        return self._client.text_to_speech.stream("heart", text=words.whole(), output_format=FORMAT)  # type: ignore[return-value]


async def main(url: str) -> None:
    await follow(Stream(settings("elevenlabs/stream", url)["client"]))


asyncio.run(main(*sys.argv[1:]))
