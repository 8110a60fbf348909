"""`convert_realtime` of ElevenLabs' package: a socket for a text that comes word by word. It dials with TLS alone."""

import asyncio
import sys
import time
from collections.abc import Generator, Iterator

from elevenlabs import ElevenLabs

from tests.clients.real.elevenlabs.speaking import FORMAT, Blocking
from tests.clients.real.steps import Words, follow, settings

WORD_S = 0.1
"""Time between words. The package takes audio only once behind each, for 10 ms."""


class LiveText(Blocking):
    def __init__(self, client: ElevenLabs) -> None:
        super().__init__()
        self._client = client

    def pieces(self, words: Words) -> Generator[bytes]:
        text = self._slowly(words)
        return self._client.text_to_speech.convert_realtime("heart", text=text, output_format=FORMAT)  # type: ignore[return-value]

    def _slowly(self, words: Words) -> Iterator[str]:
        for word in self.one_by_one(words):
            yield word
            time.sleep(WORD_S)


async def main(url: str) -> None:
    await follow(LiveText(settings("elevenlabs/live_text", url)["client"]))


asyncio.run(main(*sys.argv[1:]))
