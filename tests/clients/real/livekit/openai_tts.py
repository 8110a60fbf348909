"""Uses LiveKit's OpenAI plugin as an agent does, and prints the audio that it made of the server's answer.

usage: livekit_tts.py BASE_URL MODEL TEXT
"""

import asyncio
import json
import sys

from livekit.agents import utils
from livekit.plugins import openai


async def main(base_url: str, model: str, text: str) -> None:
    samples, rate = 0, 0
    async with utils.http_context.open():
        tts = openai.TTS(base_url=base_url, api_key="unused", model=model, voice="alloy")
        async with tts.synthesize(text) as stream:
            async for event in stream:
                samples += event.frame.samples_per_channel
                rate = event.frame.sample_rate
        await tts.aclose()
    print(json.dumps({"seconds": samples / rate, "rate": rate}))


asyncio.run(main(*sys.argv[1:]))
