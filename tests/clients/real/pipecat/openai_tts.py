"""Uses Pipecat's OpenAI TTS service, and prints the audio that it made of the server's answer.

usage: pipecat_tts.py BASE_URL MODEL TEXT
"""

import asyncio
import json
import sys

from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame, TTSSpeakFrame
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import run_test


async def main(base_url: str, model: str, text: str) -> None:
    settings = OpenAITTSService.Settings(model=model, voice="alloy")
    service = OpenAITTSService(base_url=base_url, api_key="unused", settings=settings, sample_rate=24000)
    down, up = await run_test(service, frames_to_send=[TTSSpeakFrame(text)])
    assert not [frame.error for frame in up if isinstance(frame, ErrorFrame)]
    audio = [frame for frame in down if isinstance(frame, TTSAudioRawFrame)]
    seconds = sum(len(frame.audio) / 2 / frame.sample_rate for frame in audio)
    print(json.dumps({"seconds": seconds, "rate": audio[0].sample_rate}))


asyncio.run(main(*sys.argv[1:]))
