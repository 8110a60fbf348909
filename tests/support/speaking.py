"""Runs utterances through a real engine and collects the speech."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from vivavoce_engine import AudioChunk, Engine, EngineConfig, Finished, Sampling, SamplingParams, SynthesisRequest
from vivavoce_engine.batching.messages import WordTime
from vivavoce_engine.load import load_engine

GREEDY = Sampling(SamplingParams(temperature=0, repetition_penalty=1.05), SamplingParams(temperature=0))


@dataclass(frozen=True)
class Speech:
    """One utterance: codes [frames, groups], audio, the sizes of its pieces, its end, and its words."""

    codes: NDArray[np.int16]
    pcm: NDArray[np.float32]
    chunk_frames: tuple[int, ...]
    finished: Finished
    words: tuple[WordTime, ...] = ()


Samples = NDArray[np.int16] | bytes


def largest_step(one: Samples, other: Samples) -> int:
    """Largest difference between two sounds of equal length."""
    first, second = (
        np.frombuffer(samples, "<i2") if isinstance(samples, bytes) else samples for samples in (one, other)
    )
    assert first.shape == second.shape
    return int(np.abs(first.astype(np.int32) - second).max())


def assert_same_samples(actual: Samples, expected: Samples) -> None:
    """Compares samples up to rounding. In other batches and pieces, sums differ, so a sample's last bit may too."""
    assert largest_step(actual, expected) <= 1


def assert_other_samples(actual: Samples, expected: Samples) -> None:
    assert len(actual) != len(expected) or largest_step(actual, expected) > 100


def join(chunks: Sequence[AudioChunk], finished: Finished) -> Speech:
    return Speech(
        np.concatenate([chunk.codes for chunk in chunks]),
        np.concatenate([chunk.pcm for chunk in chunks]),
        tuple(chunk.frames for chunk in chunks),
        finished,
        tuple(word for chunk in chunks for word in chunk.words),
    )


@contextmanager
def running(engine: Engine) -> Iterator[Engine]:
    """Starts an engine, and stops it at the end."""
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def load(path: Path, **settings: int | float | str) -> Engine:
    """A small engine on the CPU in float32."""
    defaults: dict[str, int | float | str] = {"max_context": 512, "device": "cpu", "dtype": "float32"}
    return load_engine(str(path), EngineConfig(**{**defaults, **settings}))  # type: ignore[arg-type]


async def listen(engine: Engine, request: SynthesisRequest) -> Speech:
    stream = engine.submit(request)
    chunks = [chunk async for chunk in stream]
    assert stream.finished is not None
    return join(chunks, stream.finished)


def speak(engine: Engine, *requests: SynthesisRequest) -> list[Speech]:
    """Speaks all requests at once."""

    async def together() -> list[Speech]:
        return await asyncio.gather(*(listen(engine, request) for request in requests))

    return asyncio.run(together())
