"""Speaks seeds alone, and again beside neighbours while steps take random times: the same PCM must result."""

import asyncio
import random
import time
from collections.abc import AsyncIterable

import numpy as np
from vivavoce_engine import AudioChunk, Engine, EngineConfig, UtteranceOptions
from vivavoce_engine.batching.runner import Runner
from vivavoce_engine.batching.scheduler import Plan

from tests.support.speaking import running
from tests.support.stepping import WatchedRunner

TEXTS = ("Hello there.", "It's 7:45!  The quick brown fox jumps.", "One, two, three, four.")


class Disturbance:
    """Makes steps take longer by amounts that a seed decides, up to most of a frame's time."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self, plan: Plan) -> None:
        time.sleep(self._random.choice((0, 0, 0, 0, 0.01, 0.05)))


def pcm_of(chunks: list[AudioChunk]) -> bytes:
    joined = np.concatenate([chunk.pcm for chunk in chunks])
    samples: bytes = np.rint(joined * 32767).astype("<i2").tobytes()
    return samples


async def chunks_of(stream: AsyncIterable[AudioChunk]) -> list[AudioChunk]:
    return [chunk async for chunk in stream]


async def say(engine: Engine, options: UtteranceOptions, text: str, fragments: random.Random | None) -> bytes:
    """Speaks a text: whole, or live in fragments whose sizes and times `fragments` decides."""
    if fragments is None:
        return pcm_of(await chunks_of(engine.submit(options.with_text(text))))
    utterance = engine.open(options)
    listener = asyncio.create_task(chunks_of(utterance.stream))
    start = 0
    while start < len(text):
        stop = start + fragments.randint(1, 12)
        utterance.append(text[start:stop])
        start = stop
        await asyncio.sleep(fragments.choice((0, 0, 0.02)))
    utterance.end()
    return pcm_of(await listener)


async def neighbour(engine: Engine, chance: random.Random) -> None:
    """Speaks beside the others, and in half of all cases leaves after its first piece."""
    options = UtteranceOptions(speaker=engine.info.speakers[0], max_frames=chance.randint(1, 20))
    stream = engine.submit(options.with_text(chance.choice(TEXTS)))
    await anext(stream)
    if chance.random() < 0.5:
        stream.cancel()
    else:
        await chunks_of(stream)


def options_for(engine: Engine, seed: int, frames: int) -> UtteranceOptions:
    return UtteranceOptions(
        speaker=engine.info.speakers[0], seed=seed, max_frames=frames, streaming_text=True, end_after_text=True
    )


async def disturbed(engine: Engine, chance: random.Random, frames: int, seeds: range) -> list[bytes]:
    """Every seed's speech, with random neighbours around it; every second one is live."""

    async def one(seed: int) -> bytes:
        await asyncio.sleep(chance.choice((0, 0.05)))
        options = options_for(engine, seed, frames)
        live = random.Random(chance.random()) if seed % 2 else None
        neighbours = asyncio.gather(*(neighbour(engine, chance) for _ in range(1 + seed % 2)))
        said = await say(engine, options, TEXTS[seed % len(TEXTS)], live)
        await neighbours
        return said

    return await asyncio.gather(*(one(seed) for seed in seeds))


def assert_seeds_hold(runner: Runner, config: EngineConfig, frames: int, seeds: range) -> None:
    """Asserts that each seed, up to `frames` codec frames of it, is the same PCM alone and beside others."""

    async def each_alone(engine: Engine) -> list[bytes]:
        return [await say(engine, options_for(engine, seed, frames), TEXTS[seed % len(TEXTS)], None) for seed in seeds]

    with running(Engine(runner, config)) as engine:
        alone = asyncio.run(each_alone(engine))
    assert len(set(alone)) == len(seeds)
    with running(Engine(WatchedRunner(runner, Disturbance(7)), config)) as engine:
        beside_others = asyncio.run(disturbed(engine, random.Random(5), frames, seeds))
    assert beside_others == alone
