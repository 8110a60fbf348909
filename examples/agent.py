"""A voice agent: type a question and Enter. The answer is spoken while it is written, and the next Enter interrupts it.

Needs a running server (`make run`) and `pip install vivavoce-speech openai`. It plays if sounddevice is installed.
"""

import argparse
import asyncio
import importlib.util
import os
import sys
import threading
import wave
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from openai import AsyncOpenAI
from vivavoce_client import AsyncClient, AsyncLiveSession

CANNED = "Every question gets this answer, until you name a language model by its address. Press Enter to stop me."
SAMPLE_RATE = 24_000
Play = Callable[[bytes], object]
"""Takes the next 16-bit PCM."""


async def think(llm: str | None, model: str, messages: list[Any]) -> AsyncIterator[str]:
    """Streams the language model's answer, and keeps in the last message what was written of it."""
    if llm is None:
        yield CANNED
        return
    async with AsyncOpenAI(base_url=llm, api_key=os.environ.get("OPENAI_API_KEY", "none")) as client:
        stream = await client.chat.completions.create(model=model, messages=messages[:-1], stream=True)
        async for event in stream:
            for choice in event.choices:
                messages[-1]["content"] += choice.delta.content or ""
                yield choice.delta.content or ""


@contextmanager
def output(path: str | None, unplayed: bytearray) -> Iterator[Play]:
    """Opens a loudspeaker, which plays `unplayed`, or a WAV file."""
    if path is None and importlib.util.find_spec("sounddevice"):

        def fill(samples: Any, *_: object) -> None:  # noqa: ANN401 (sounddevice has no types)
            block = bytes(unplayed[: len(samples)])
            samples[:] = block.ljust(len(samples), b"\0")
            del unplayed[: len(block)]  # more may have come meanwhile

        device = importlib.import_module("sounddevice")
        with device.RawOutputStream(samplerate=SAMPLE_RATE, channels=1, dtype="int16", callback=fill):
            yield unplayed.extend
    else:
        with wave.open(path or "agent.wav", "wb") as file:
            file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", "not compressed"))
            yield file.writeframes


async def speak(live: AsyncLiveSession, tokens: AsyncIterator[str], play: Play, unplayed: bytearray) -> None:
    async with live.say(tokens) as speech:
        async for pcm in speech:
            play(pcm)
    while unplayed:  # noqa: ASYNC110 (another thread empties it)
        await asyncio.sleep(0.02)


def read(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str]) -> None:
    """Reads what is typed. An empty line is the end; a line of Enter alone has its line break."""
    line = "none yet"
    while line:
        line = sys.stdin.readline()
        loop.call_soon_threadsafe(lines.put_nowait, line)


async def converse(live: AsyncLiveSession, play: Play, unplayed: bytearray, llm: str | None, model: str) -> None:
    lines: asyncio.Queue[str] = asyncio.Queue()
    threading.Thread(target=read, args=(asyncio.get_running_loop(), lines), daemon=True).start()
    messages: list[Any] = []
    line = await lines.get()
    while line:
        typed = asyncio.create_task(lines.get())
        if line.strip():
            messages += [{"role": "user", "content": line.strip()}, {"role": "assistant", "content": ""}]
            speaking = asyncio.create_task(speak(live, think(llm, model, messages), play, unplayed))
            await asyncio.wait({speaking, typed}, return_when=asyncio.FIRST_COMPLETED)
            if typed.done() and typed.result():
                speaking.cancel()
                unplayed.clear()
            with suppress(asyncio.CancelledError):
                await speaking
        line = await typed


async def run(args: argparse.Namespace) -> None:
    unplayed = bytearray()
    with output(args.output, unplayed) as play:
        client = AsyncClient(args.url, api_key=os.environ.get("VIVAVOCE_API_KEY"))
        async with client, client.live(args.voice) as live:
            await converse(live, play, unplayed, args.llm, args.model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--llm", metavar="URL", help="OpenAI-compatible chat endpoint, such as http://localhost:8080/v1"
    )
    parser.add_argument("--model", default="default", help="name of the language model [%(default)s]")
    parser.add_argument("--voice", default="heart", help="a voice of the server [%(default)s]")
    parser.add_argument("-o", "--output", help="WAV file to write instead of playing")
    parser.add_argument("--url", default=os.environ.get("VIVAVOCE_URL", "http://127.0.0.1:8000"), help="[%(default)s]")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
