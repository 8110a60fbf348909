"""The voice pipeline of openai-agents: a request for each sentence. Text of a workflow in, audio out."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from agents.voice import AudioInput, STTModel, VoiceWorkflowBase

from tests.clients.real.steps import Client, Sound, Words, follow, settings

RATE_HZ = 24000


class NoListening(STTModel):  # type: ignore[misc]
    """The place of a model that hears: a session asks in writing."""

    model_name = "none"

    async def transcribe(self, *_: Any) -> str:
        return "Say it."

    async def create_session(self, *_: Any) -> Any:
        raise NotImplementedError("a pipeline that is asked in writing opens no session of a microphone")


class Reader(Client, VoiceWorkflowBase):  # type: ignore[misc]
    """A pipeline whose workflow yields the words of the turn."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._pipeline = settings("openai_agents/voice", url, workflow=self, hearing=NoListening())["pipeline"]
        self._words = Words("", Sound())

    async def run(self, transcription: str) -> AsyncIterator[str]:
        async for word in self._words:
            yield word

    async def say(self, words: Words, sound: Sound) -> None:
        self._words = words
        result = await self._pipeline.run(AudioInput(np.zeros(RATE_HZ, np.int16)))
        events = result.stream()
        try:
            async for event in events:
                if event.type == "voice_stream_event_audio":
                    sound.add(event.data.tobytes(), RATE_HZ)
                elif event.type == "voice_stream_event_error":
                    self.errors.append(str(event.error))
        finally:
            await events.aclose()

    async def interrupt(self) -> None:
        """The cancelled turn has closed its stream."""


async def main(url: str) -> None:
    await follow(Reader(url))


asyncio.run(main(*sys.argv[1:]))
