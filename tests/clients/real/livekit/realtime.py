"""LiveKit's Realtime model: says the user's last message, cancelled and truncated at an interruption."""

import asyncio
import sys

from livekit.agents import llm, utils

from tests.clients.real.steps import Client, Sound, Words, follow, settings


class Reader(Client):
    """A session of the model."""

    def __init__(self, session: llm.RealtimeSession) -> None:
        super().__init__()
        self._session = session
        self._message_id = ""
        self._sound = Sound()
        session.on("error", lambda event: self.errors.append(str(event)))

    async def say(self, words: Words, sound: Sound) -> None:
        context = self._session.chat_ctx.copy()
        context.add_message(role="user", content=words.whole())
        await self._session.update_chat_ctx(context)
        generation = await self._session.generate_reply()
        self._sound = sound
        async for message in generation.message_stream:
            self._message_id = message.message_id
            async for frame in message.audio_stream:
                sound.add(bytes(frame.data), frame.sample_rate)

    async def interrupt(self) -> None:
        self._session.interrupt()
        heard_ms = round(self._sound.seconds * 1000)
        self._session.truncate(message_id=self._message_id, modalities=["audio"], audio_end_ms=heard_ms)


async def main(url: str) -> None:
    async with utils.http_context.open():
        session = settings("livekit/realtime", url)["model"].session()
        await follow(Reader(session))
        await session.aclose()


asyncio.run(main(*sys.argv[1:]))
