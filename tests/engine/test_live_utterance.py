"""Live text: the speech depends only on the text, not on its fragments or their arrival times."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vivavoce_engine import AudioChunk, Engine, EngineConfig, Overloaded, Rejected
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.fake_runner import FakeRunner
from vivavoce_engine.front.live import LiveUtterance
from vivavoce_engine.request import UtteranceOptions
from vivavoce_engine.text.prompt import TextFrontend
from vivavoce_voice import CHECKPOINT

from tests.engine.conftest import Checkpoints
from tests.support.cpu_runners import MakeRunner
from tests.support.speaking import Speech, join, listen, running

TEXT = "Hello there, it's 7:45!  The quick brown fox jumps."
Fragment = tuple[str, bool]
"""Text, and whether the listener waits until all it makes possible has been said before the next comes."""


@pytest.fixture(scope="module")
def engine(checkpoints: Checkpoints, make_runner: MakeRunner) -> Iterator[Engine]:
    config = EngineConfig(max_context=160, max_streams=3, device="cpu", dtype="float32")
    runner = make_runner("tiny", read_checkpoint(checkpoints("tiny", "custom_voice")), config)
    with running(Engine(runner, config)) as engine:
        yield engine


@pytest.fixture(scope="module")
def shipped_engine(make_runner: MakeRunner) -> Iterator[Engine]:
    config = EngineConfig(max_context=512, max_streams=2, device="cpu", dtype="float32")
    with running(Engine(make_runner("shipped", read_checkpoint(CHECKPOINT), config), config)) as engine:
        yield engine


def options_for(engine: Engine, seed: int, max_frames: int) -> UtteranceOptions:
    return UtteranceOptions(speaker=engine.info.speakers[0], seed=seed, max_frames=max_frames)


def fragments_of(text: str, cuts: list[int], waits: list[bool]) -> list[Fragment]:
    edges = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
    pieces = [text[start:end] for start, end in pairwise(edges)]
    return [(piece, bool(waits) and waits[index % len(waits)]) for index, piece in enumerate(pieces)]


async def say(engine: Engine, options: UtteranceOptions, fragments: list[Fragment]) -> Speech:
    utterance = engine.open(options)
    committer = engine_text(engine).live_text()
    chunks: list[AudioChunk] = []
    tokens = 0
    for text, wait in fragments:
        utterance.append(text)
        tokens += len(committer.append(text))
        # The first token is in the prompt, and each further one makes a frame possible.
        while wait and sum(chunk.frames for chunk in chunks) < min(tokens - 1, options.max_frames or tokens):
            chunks.append(await anext(utterance.stream))
    utterance.end()
    chunks += [chunk async for chunk in utterance.stream]
    assert utterance.stream.finished is not None
    return join(chunks, utterance.stream.finished)


@cache
def at_once(engine: Engine, options: UtteranceOptions) -> Speech:
    """What is said where the text comes in one piece."""
    return asyncio.run(say(engine, options, [(TEXT, False)]))


def engine_text(engine: Engine) -> TextFrontend:
    text = engine.text
    assert isinstance(text, TextFrontend)
    return text


def assert_identical(actual: Speech, expected: Speech) -> None:
    """Bit for bit."""
    assert np.array_equal(actual.codes, expected.codes)
    assert actual.finished == expected.finished
    assert actual.pcm.tobytes() == expected.pcm.tobytes()


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(0, len(TEXT) - 1), max_size=8),
    waits=st.lists(st.booleans(), min_size=1, max_size=5),
    seed=st.integers(0, 3),
)
def test_any_fragments_at_any_time_give_the_same_speech(
    engine: Engine, cuts: list[int], waits: list[bool], seed: int
) -> None:
    options = options_for(engine, seed, max_frames=40)
    assert_identical(asyncio.run(say(engine, options, fragments_of(TEXT, cuts, waits))), at_once(engine, options))


@pytest.mark.long
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, len(TEXT) - 1), max_size=8), waits=st.lists(st.booleans(), min_size=1, max_size=5))
def test_any_fragments_give_the_same_speech_of_the_shipped_voice(
    shipped_engine: Engine, cuts: list[int], waits: list[bool]
) -> None:
    options = options_for(shipped_engine, 8, max_frames=30)
    actual = asyncio.run(say(shipped_engine, options, fragments_of(TEXT, cuts, waits)))
    assert_identical(actual, at_once(shipped_engine, options))


def test_live_text_equals_the_same_text_submitted(engine: Engine) -> None:
    options = options_for(engine, 5, max_frames=40)
    submitted = replace(options.with_text(TEXT), streaming_text=True, end_after_text=True)
    live = asyncio.run(say(engine, options, [(TEXT, False)]))
    assert_identical(live, asyncio.run(listen(engine, submitted)))


@pytest.mark.parametrize("waits", [[True], [False, True]])
def test_the_shipped_voice_word_by_word(shipped_engine: Engine, waits: list[bool]) -> None:
    options = options_for(shipped_engine, 7, max_frames=60)
    cuts = [index for index, character in enumerate(TEXT) if character == " "]
    actual = asyncio.run(say(shipped_engine, options, fragments_of(TEXT, cuts, waits)))
    assert_identical(actual, at_once(shipped_engine, options))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(alphabet="ae\u0301\u4f60 '.,!\n12s-", max_size=30),
    ends=st.lists(st.booleans(), min_size=1, max_size=6),
)
def test_a_word_that_is_said_to_be_complete_is_final_at_once(engine: Engine, text: str, ends: list[bool]) -> None:
    committer = engine_text(engine).live_text()
    ids: list[int] = []
    start = 0
    for place in range(1, len(text)):
        is_end = text[place - 1].isalnum() and (text[place].isspace() or text[place] in "'.,!-")
        if is_end and ends[place % len(ends)]:
            ids += committer.append(text[start:place], word_ends=True)
            assert ids == engine_text(engine)._tokenizer.encode(text[:place])
            start = place
    ids += committer.append(text[start:]) + committer.close()
    assert ids == engine_text(engine)._tokenizer.encode(text)


@pytest.mark.parametrize("text", ["It is  7 now", "  1", "at \n  5", "a   2  3"])
def test_blanks_before_a_digit_have_the_ids_of_the_whole_text(engine: Engine, text: str) -> None:
    for size in (1, 2, 3, len(text)):
        committer = engine_text(engine).live_text()
        ids = [token for start in range(0, len(text), size) for token in committer.append(text[start : start + size])]
        assert ids + committer.close() == engine_text(engine)._tokenizer.encode(text)


def test_neighbours_that_wait_for_text_change_nothing(engine: Engine) -> None:
    async def together() -> list[Speech]:
        words = [(word, True) for word in ("Hello there, ", "it's 7:45!", "  The quick ", "brown fox jumps.")]
        return await asyncio.gather(*(say(engine, options_for(engine, seed, 30), words) for seed in (1, 2, 3)))

    for seed, speech in zip((1, 2, 3), asyncio.run(together()), strict=True):
        assert_identical(speech, asyncio.run(say(engine, options_for(engine, seed, 30), [(TEXT, False)])))


def test_speech_does_not_end_before_the_text_has(engine: Engine) -> None:
    committer = engine_text(engine).live_text()
    text_tokens = len(committer.append(TEXT)) + len(committer.close())
    for seed in range(6):
        speech = asyncio.run(say(engine, options_for(engine, seed, 100), [(TEXT, False)]))
        assert speech.finished.frames >= text_tokens
        assert speech.finished.text_tokens == text_tokens


def open_fake(engine: Engine) -> LiveUtterance:
    return engine.open(UtteranceOptions(speaker="heart", seed=1))


@pytest.mark.parametrize("phase", ["before text", "waiting for text", "text ended"])
def test_cancelling_frees_the_row_in_every_phase(phase: str) -> None:
    async def cancel(engine: Engine) -> None:
        utterance = open_fake(engine)
        if phase != "before text":
            utterance.append("hello")
            await anext(utterance.stream)
        if phase == "text ended":
            utterance.end()
        utterance.stream.cancel()
        following = open_fake(engine)  # there is one row: it only speaks if that is free
        following.append("next")
        following.end()
        assert sum([chunk.frames async for chunk in following.stream]) == 4

    with running(Engine(FakeRunner(), EngineConfig(max_streams=1))) as engine:
        asyncio.run(cancel(engine))
        assert engine.stats().running == engine.stats().queued == 0


def test_blank_and_unservable_live_texts_are_refused() -> None:
    async def attempts(engine: Engine) -> None:
        with pytest.raises(Rejected, match="no speaker") as refused:
            engine.open(UtteranceOptions(speaker="nobody"))
        assert refused.value.param == "speaker"
        with pytest.raises(Rejected, match="blank"):
            open_fake(engine).end()
        with pytest.raises(Rejected, match="more than 16 tokens"):
            open_fake(engine).append("x" * 16)

    with running(Engine(FakeRunner(), EngineConfig(max_context=16))) as engine:
        asyncio.run(attempts(engine))


def test_a_full_queue_refuses_a_live_text_when_it_begins() -> None:
    async def attempt(engine: Engine) -> None:
        running_one = open_fake(engine)
        running_one.append("hello")
        await anext(running_one.stream)
        waiting = open_fake(engine)
        waiting.append("hello")
        with pytest.raises(Overloaded):
            open_fake(engine).append("hello")
        running_one.end()
        waiting.end()
        assert sum([chunk.frames async for chunk in waiting.stream]) == 5

    with running(Engine(FakeRunner(), EngineConfig(max_streams=1, max_queue=1))) as engine:
        asyncio.run(attempt(engine))
