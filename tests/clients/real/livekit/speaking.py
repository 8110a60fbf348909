"""A LiveKit agent's use of a speech plugin: words in, frames out, and a stream that is closed at an interruption."""

import asyncio

from livekit.agents import tts

from tests.clients.real.steps import Client, Sound, Words


class Agent(Client):
    """A plugin that streams. One that does not is wrapped in `tts.StreamAdapter`, as an AgentSession does."""

    def __init__(self, plugin: tts.TTS) -> None:
        super().__init__()
        self.plugin = plugin
        plugin.on("error", lambda event: self.errors.append(str(event)))

    async def say(self, words: Words, sound: Sound) -> None:
        async with self.plugin.stream() as stream:
            feeding = asyncio.create_task(self._feed(stream, words))
            try:
                async for event in stream:
                    sound.add(bytes(event.frame.data), event.frame.sample_rate)
            finally:
                feeding.cancel()

    async def interrupt(self) -> None:
        """The cancelled turn has closed its stream."""

    async def _feed(self, stream: tts.SynthesizeStream, words: Words) -> None:
        async for word in words:
            stream.push_text(word)
        stream.end_input()
