"""The live socket over the shipped voice: speech depends only on the text, not on its fragments or their times."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from vivavoce_engine import EngineConfig
from vivavoce_engine.load import load_engine
from vivavoce_voice import CHECKPOINT

from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import dial
from tests.support.speaking import assert_same_samples
from tests.support.waiting import wait_until

TEXT = "Hello there, it's 7:45! The quick brown fox jumps."


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    config = EngineConfig(max_context=256, max_streams=3, device="cpu", dtype="float32")
    with live_server(load_engine(str(CHECKPOINT), config)) as running:
        yield running


async def say(server: LiveServer, seed: int, fragments: list[str]) -> NDArray[np.int16]:
    async with dial(server) as socket:
        await socket.configure(seed=seed, max_new_tokens=36)
        for fragment in fragments:
            await socket.say(fragment)
            await asyncio.sleep(0.02)
        await socket.send("input.done")
        return np.frombuffer((await socket.utterance()).audio, "<i2")


async def test_fragments_and_neighbours_change_nothing(server: LiveServer) -> None:
    words = [word + " " for word in TEXT.split(" ")]
    words[-1] = words[-1].rstrip()
    fragments = ([TEXT], words, list(TEXT))
    whole, by_word, by_letter = await asyncio.gather(*(say(server, 7, pieces) for pieces in fragments))
    assert len(whole) > 10 * 1920
    assert whole.max() > 1000
    for other in (by_word, by_letter):
        assert_same_samples(other, whole)


async def test_a_first_word_that_comes_alone_is_not_lost(server: LiveServer) -> None:
    """One token starts an utterance and lets no frame be made yet: a step that does nothing but start it."""
    first, *others = ["The train ", "leaves ", "at ", "noon."]
    whole = await say(server, 5, [first + "".join(others)])
    async with dial(server) as socket:
        await socket.configure(seed=5, max_new_tokens=36)
        await socket.say(first)
        await asyncio.to_thread(wait_until, lambda: server.engine.stats().running == 1)
        await asyncio.sleep(0.1)
        await socket.say(*others)
        await socket.send("input.done")
        heard = np.frombuffer((await socket.utterance()).audio, "<i2")
    assert_same_samples(heard, whole)
