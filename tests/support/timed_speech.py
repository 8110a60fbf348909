"""Utterances of the shipped voice whose word times are known: their texts, voices and seeds, and how they are spoken.

The reference times are in tests/quality/word_times.json, which tests/quality/make_word_times.py describes.
"""

import asyncio
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from vivavoce_bench.listener.prompts import load_prompts
from vivavoce_engine import AudioChunk, Engine, EngineConfig, SynthesisRequest
from vivavoce_engine.load import load_engine
from vivavoce_voice import CHECKPOINT

from tests.support.speaking import running

Layout = Literal["whole", "streaming"]
"""The whole text before the first frame, or a token a frame."""
LAYOUTS: tuple[Layout, ...] = ("whole", "streaming")
VOICES = ("heart", "bella", "michael", "fenrir", "emma", "george")
PLAIN = load_prompts("en")[1:60:2]
PAUSES = [
    "He opened the door; nobody was there.",
    "Wait! You forgot your umbrella.",
    "There is one rule here: never run on the stairs.",
    "I knocked twice... then I went home.",
    "Is it far? No, it is just around the corner.",
    "My brother - the younger one - lives in Rome.",
    "If it rains, we stay inside; if not, we walk to the lake.",
    "Good morning! How are you? I am fine, thank you.",
]
NUMBERS = [
    "The meeting is in room 217 on the second floor.",
    "We sold 48 tickets and 15 books on Friday.",
    "The train leaves at 11:15 from the main station.",
    "She was born in 1987 in a small town.",
    "There are 365 days in a year.",
    "Please call me before 6:40 this evening.",
    "The old bridge was built in 2026 by 12 men.",
    "It takes 90 minutes to walk 5 miles.",
]
REPEATS = [
    "It was a very, very, very long day.",
    "I know that that word is not easy.",
    "No, no, no, I did not say that.",
    "He had had enough of the noise.",
    "Round and round and round the wheel goes.",
    "The more you read, the more you know, the more you ask.",
    "She ran and ran and ran until the end of the road.",
    "Again and again he told me the same old story.",
]
SETS = {"plain": PLAIN, "pauses": PAUSES, "numbers": NUMBERS, "repeats": REPEATS}


@dataclass(frozen=True)
class Utterance:
    """One utterance of a set, and its `layout`."""

    set: str
    layout: Layout
    voice: str
    seed: int
    text: str

    @property
    def request(self) -> SynthesisRequest:
        return SynthesisRequest(
            self.text,
            speaker=self.voice,
            language="english",
            seed=self.seed,
            streaming_text=self.layout == "streaming",
            word_times=True,
        )


@dataclass(frozen=True)
class Said:
    """Speech of an utterance."""

    utterance: Utterance
    chunks: tuple[AudioChunk, ...]

    @property
    def pcm(self) -> NDArray[np.float32]:
        return np.concatenate([chunk.pcm for chunk in self.chunks])

    @property
    def frames(self) -> int:
        return sum(chunk.frames for chunk in self.chunks)

    @property
    def code_0_crc32(self) -> int:
        """Fingerprint of the codes that say which sounds are spoken, and when."""
        return zlib.crc32(np.concatenate([chunk.codes[:, 0] for chunk in self.chunks]).astype("<i2").tobytes())


def utterances() -> Iterator[Utterance]:
    """All sets in both layouts, by all voices in turn. Two voices say each plain sentence."""
    for layout in LAYOUTS:
        for number, (name, texts) in enumerate(SETS.items()):
            for time in range(2 if name == "plain" else 1):
                for place, text in enumerate(texts):
                    voice = VOICES[(place + number + 3 * time) % len(VOICES)]
                    yield Utterance(name, layout, voice, 1000 * number + 10 * place + time, text)


def speak(asked: Sequence[Utterance]) -> list[Said]:
    """Speaks utterances with the shipped voice on the CPU, by its own sampling."""

    async def one(engine: Engine, utterance: Utterance) -> Said:
        return Said(utterance, tuple([chunk async for chunk in engine.submit(utterance.request)]))

    async def together(engine: Engine) -> list[Said]:
        return await asyncio.gather(*(one(engine, utterance) for utterance in asked))

    config = EngineConfig(max_streams=4, max_queue=len(asked), max_context=512, device="cpu", dtype="float32")
    with running(load_engine(str(CHECKPOINT), config)) as engine:
        return asyncio.run(together(engine))
