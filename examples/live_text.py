"""Speak a language model's answer while it is being written.

Needs a running server (`make run`) and `pip install vivavoce-speech`. A stand-in writes the answer, so that the example
runs offline. With --llm (and `pip install openai`) a chat model behind OpenAI's API writes it.
"""

import argparse
import asyncio
import os
import wave
from collections.abc import AsyncIterator

from vivavoce_client import AsyncClient

ANSWER = "Sound is a wave of pressure. It travels through air at about three hundred and forty metres a second."
TOKEN_PAUSE_S = 0.02
SAMPLE_RATE = 24_000


async def stand_in(question: str) -> AsyncIterator[str]:
    """Streams one answer to every question, word by word."""
    del question
    for word in ANSWER.split():
        await asyncio.sleep(TOKEN_PAUSE_S)
        yield f"{word} "


async def chat_model(model: str, question: str) -> AsyncIterator[str]:
    """Streams the tokens of a chat model. OPENAI_API_KEY and OPENAI_BASE_URL say where it is."""
    from openai import AsyncOpenAI  # here: the stand-in needs no OpenAI package

    async with AsyncOpenAI() as client:
        stream = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": question}], stream=True
        )
        async for event in stream:
            for choice in event.choices:
                if choice.delta.content:
                    yield choice.delta.content


async def say(url: str, tokens: AsyncIterator[str], voice: str, path: str) -> None:
    """Speaks tokens as they come. The speech is the same however the text is cut into tokens."""
    client = AsyncClient(url, api_key=os.environ.get("VIVAVOCE_API_KEY"))
    async with client, client.live(voice, seed=1) as live, live.say(tokens) as speech:
        with wave.open(path, "wb") as file:
            file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", "not compressed"))
            async for pcm in speech:  # 16-bit PCM: play it, and call live.cancel() when the user interrupts
                file.writeframes(pcm)
            print(f"{path}: {file.tell() / SAMPLE_RATE:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question")
    parser.add_argument("--llm", metavar="MODEL", help="chat model that answers [a stand-in]")
    parser.add_argument("--voice", default="heart", help="a voice of the server [%(default)s]")
    parser.add_argument("-o", "--output", default="answer.wav", help="WAV file to write [%(default)s]")
    parser.add_argument("--url", default=os.environ.get("VIVAVOCE_URL", "http://127.0.0.1:8000"), help="[%(default)s]")
    args = parser.parse_args()

    tokens = chat_model(args.llm, args.question) if args.llm else stand_in(args.question)
    asyncio.run(say(args.url, tokens, args.voice, args.output))


if __name__ == "__main__":
    main()
