"""Answers in an engine's own process: ids cross the pipe, and a worker that dies fails those that wait for ids."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from vivavoce_engine import (
    EngineConfig,
    EnginePool,
    EngineProcess,
    Finished,
    NotServing,
    SpeechEngine,
    SpokenAnswer,
    SynthesisFailed,
    ThinkerPrompt,
    UtteranceOptions,
    collect,
)
from vivavoce_engine.fake_runner import FAKE_ANSWERS, fake_chat_model, tone
from vivavoce_engine.process import watcher

from tests.support.waiting import HUNG_S, wait_until

T = FAKE_ANSWERS.tokens
PROMPT = ThinkerPrompt((T.im_start, T.user, T.newline, ord("?"), T.im_start, T.assistant, T.newline))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "FIRST_BACKOFF_S", 0.05)


@contextmanager
def started(engine: EngineProcess | EnginePool) -> Iterator[SpeechEngine]:
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def opened(engine: SpeechEngine, seed: int) -> SpokenAnswer:
    return engine.open_answer(UtteranceOptions(speaker="heart", seed=seed), PROMPT)


async def assert_answers(engine: SpeechEngine, seed: int) -> None:
    answer = opened(engine, seed)
    for letter in "Beijing":
        answer.append_ids([ord(letter)])
        first = await asyncio.wait_for(anext(answer.stream), HUNG_S)
        assert first.frames == 1, "each id makes one frame, which is heard before the next id comes"
    answer.append_ids([ord("!"), T.ends[0]])
    chunks, finished = await asyncio.wait_for(collect(answer.stream), HUNG_S)
    assert finished == Finished(text_tokens=8, frames=8, reason="stop")
    assert np.array_equal(chunks[-1].pcm, tone(seed, 7, 1))


async def test_answers_cross_the_pipe_and_a_worker_that_dies_fails_those_that_wait() -> None:
    process = EngineProcess(fake_chat_model(), EngineConfig(max_streams=2))
    with started(process) as engine:
        await assert_answers(engine, 3)
        answer = opened(engine, 5)
        answer.append_ids([ord("a")])
        await asyncio.wait_for(anext(answer.stream), HUNG_S)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(NotServing):
            await asyncio.wait_for(anext(answer.stream), HUNG_S)
        answer.append_ids([ord("b")])
        answer.end()
        await asyncio.to_thread(wait_until, lambda: engine.ready)
        await assert_answers(engine, 7)


async def test_answers_of_a_pool_break_and_end_without_a_row() -> None:
    with started(EnginePool.of_processes(fake_chat_model(), EngineConfig(max_streams=1), 2)) as engine:
        broken, empty = opened(engine, 1), opened(engine, 2)
        broken.append_ids([ord("a")] * 3)
        empty.append_ids([T.ends[1]])
        assert await collect(empty.stream) == ([], Finished(text_tokens=0, frames=0, reason="stop"))
        broken.fail(SynthesisFailed("the thinker has stalled"))
        with pytest.raises(SynthesisFailed, match="stalled"):
            await collect(broken.stream)
        await asyncio.gather(assert_answers(engine, 4), assert_answers(engine, 6))
        await asyncio.to_thread(wait_until, lambda: engine.stats().running == 0)
