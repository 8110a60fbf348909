"""The engine's thread, with a fake runner: batching, refusing, cancelling, streaming, stopping, breaking."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from vivavoce_engine import (
    AudioChunk,
    AudioStream,
    Engine,
    EngineConfig,
    EngineStats,
    NotServing,
    Overloaded,
    Rejected,
    SynthesisRequest,
    collect,
    load,
)
from vivavoce_engine.batching.runner import builder_of
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, FakeText, tone
from vivavoce_engine.model import Parts
from vivavoce_engine.text.prompt import Prompt

from tests.support.speaking import join, running, speak
from tests.support.stepping import WatchedRunner, stepping
from tests.support.waiting import HUNG_S, soon

T = TypeVar("T")
ENDLESS = SynthesisRequest("x" * 4000, speaker="heart", seed=1)


def says(frames: int, seed: int = 1, **fields: int) -> SynthesisRequest:
    """A request that the fake runner speaks in `frames` frames."""
    return SynthesisRequest("x" * frames, speaker="heart", seed=seed, **fields)  # type: ignore[arg-type]


async def pcm_of(stream: AudioStream) -> NDArray[np.float32]:
    chunks, _ = await soon(collect(stream))
    pcm: NDArray[np.float32] = np.concatenate([chunk.pcm for chunk in chunks])
    return pcm


# ---- speaking and batching


def test_an_utterance_is_the_tone_of_its_seed() -> None:
    with running(Engine(FakeRunner(), EngineConfig())) as engine:
        (speech,) = speak(engine, says(11, seed=77))
    assert np.array_equal(speech.pcm, tone(77, 0, 11))
    assert speech.chunk_frames[0] == 1
    assert (speech.finished.frames, speech.finished.text_tokens, speech.finished.reason) == (11, 11, "stop")


def test_without_a_seed_each_utterance_gets_its_own() -> None:
    with running(Engine(FakeRunner(), EngineConfig())) as engine:
        first, second = speak(engine, *[replace(says(3), seed=None)] * 2)
    assert not np.array_equal(first.pcm, second.pcm)


async def test_four_at_once_share_their_steps() -> None:
    with stepping() as (engine, steps):
        streams = [engine.submit(says(10, seed=1))]
        steps.next()
        streams += [engine.submit(says(10, seed=seed)) for seed in (2, 3, 4)]
        steps.open()
        for seed, stream in enumerate(streams, start=1):
            assert np.array_equal(await pcm_of(stream), tone(seed, 0, 10))
    # The others begin with the second step, and their ten frames end in the eleventh. One after the other, they would
    # take 40.
    assert engine.stats() == EngineStats(queued=0, running=0, steps=11, frames=40)
    assert [step.step for step in steps.taken[:2]] == [(1,), (1, 2, 3, 4)]


async def test_utterances_join_and_leave_between_frames() -> None:
    with stepping() as (engine, steps):
        long = engine.submit(says(6, seed=1))
        assert steps.next().step == (1,)
        short = engine.submit(says(2, seed=2))
        assert steps.allow().step == (1, 2)
        assert steps.allow().step == (1, 2)
        assert steps.allow().step == (1,)
        late = engine.submit(says(2, seed=3))
        joined = steps.allow()
        assert (joined.start, joined.step, joined.rows) == ((3,), (1, 3), (0, 1))
        steps.open()
        assert np.array_equal(await pcm_of(long), tone(1, 0, 6))
        assert np.array_equal(await pcm_of(short), tone(2, 0, 2))
        assert np.array_equal(await pcm_of(late), tone(3, 0, 2))


async def test_the_first_chunk_is_heard_while_the_utterance_is_made() -> None:
    with stepping() as (engine, steps):
        stream = engine.submit(says(5))
        steps.next()
        steps.allow()  # the engine stands before its second step now
        first = await soon(anext(stream))
        assert np.array_equal(first.pcm, tone(1, 0, 1))
        assert (stream.finished, engine.stats().frames, engine.stats().running) == (None, 1, 1)
        steps.open()
        rest, finished = await soon(collect(stream))
    assert np.array_equal(np.concatenate([chunk.pcm for chunk in rest]), tone(1, 1, 4))
    assert finished.frames == 5


@pytest.mark.parametrize(
    ("max_frames", "frames", "reason"), [(None, 6, "stop"), (6, 6, "stop"), (5, 5, "length"), (1, 1, "length")]
)
def test_an_utterance_ends_by_itself_or_at_its_limit(max_frames: int | None, frames: int, reason: str) -> None:
    with running(Engine(FakeRunner(), EngineConfig())) as engine:
        (speech,) = speak(engine, replace(says(6), max_frames=max_frames))
    assert (speech.finished.frames, speech.finished.reason) == (frames, reason)
    assert np.array_equal(speech.pcm, tone(1, 0, frames))


def test_the_checkpoints_and_the_contexts_limits_hold() -> None:
    info = replace(FAKE_INFO, max_frames=7)
    with running(Engine(FakeRunner(info), EngineConfig())) as engine:
        assert speak(engine, says(20))[0].finished.frames == 7
        assert speak(engine, says(20, max_frames=9))[0].finished.frames == 9
    with running(Engine(FakeRunner(), EngineConfig(max_context=12))) as engine:
        assert speak(engine, says(20))[0].finished.frames == 11  # the fake prompt takes one position


# ---- refusing


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (SynthesisRequest("Hello", speaker="nobody"), "speaker"),
        (SynthesisRequest("Hello"), "speaker"),
        (SynthesisRequest(" \n\t", speaker="heart"), "text"),
        (SynthesisRequest("", speaker="heart"), "text"),
        (SynthesisRequest("Hello", speaker="heart", language="klingon"), "language"),
    ],
)
async def test_what_the_model_lacks_is_rejected_by_field(request_: SynthesisRequest, param: str) -> None:
    with running(Engine(FakeRunner(), EngineConfig())) as engine:
        with pytest.raises(Rejected) as rejected:
            engine.submit(request_)
        assert rejected.value.param == param
        assert engine.stats().queued == 0
        assert np.array_equal(await pcm_of(engine.submit(says(2))), tone(1, 0, 2))


class LongPrompts(FakeText):
    """One position a character, before the first frame or, in streaming text mode, with the frames after it."""

    def prompt(self, request: SynthesisRequest) -> Prompt:
        ids = (7,) * len(request.text)
        return Prompt((7,), (7,), ids, len(ids)) if request.streaming_text else Prompt(ids, ids, (), len(ids))


@pytest.mark.parametrize("streaming_text", [False, True])
async def test_a_text_longer_than_the_context_is_rejected(streaming_text: bool) -> None:
    with running(
        Engine(WatchedRunner(FakeRunner(), text=LongPrompts(FAKE_INFO)), EngineConfig(max_context=20))
    ) as engine:
        for length in (20, 21, 500):
            with pytest.raises(Rejected) as rejected:
                engine.submit(replace(says(length), streaming_text=streaming_text))
            assert rejected.value.param == "text"
        _, finished = await soon(collect(engine.submit(replace(says(18), streaming_text=streaming_text))))
        assert (finished.frames, finished.reason) == ((18, "stop") if streaming_text else (2, "length"))


@pytest.mark.parametrize(
    "fields", [{"max_frames": 0}, {"max_frames": -1}, {"first_chunk_frames": 0}, {"seed": -1}, {"seed": 2**63}]
)
def test_impossible_numbers_do_not_reach_the_engine(fields: dict[str, int]) -> None:
    (name,) = fields
    with pytest.raises(ValueError, match=name):
        replace(says(2), **fields)  # type: ignore[arg-type]


async def test_the_queue_takes_exactly_its_number() -> None:
    with stepping(max_streams=2, max_queue=3) as (engine, steps):
        accepted = [engine.submit(says(2, seed=1))]
        steps.next()
        accepted.append(engine.submit(says(2, seed=2)))
        steps.allow()  # both run
        accepted += [engine.submit(says(2, seed=seed)) for seed in (3, 4, 5)]
        assert engine.stats().queued == 3
        for _ in range(2):
            with pytest.raises(Overloaded) as overloaded:
                engine.submit(says(2))
            assert overloaded.value.retry_after_s > 0
        steps.open()
        for seed, stream in enumerate(accepted, start=1):
            assert np.array_equal(await pcm_of(stream), tone(seed, 0, 2))
        assert np.array_equal(await pcm_of(engine.submit(says(2, seed=6))), tone(6, 0, 2))


async def test_a_place_in_the_queue_is_free_again_after_a_cancel() -> None:
    with stepping(max_streams=1, max_queue=1) as (engine, steps):
        engine.submit(ENDLESS)
        steps.next()
        waiting = engine.submit(says(2))
        with pytest.raises(Overloaded):
            engine.submit(says(2))
        waiting.cancel()
        steps.allow()
        assert engine.stats().queued == 0
        engine.submit(says(2))
        assert engine.stats().queued == 1


async def test_before_start_and_after_stop_nothing_is_accepted() -> None:
    engine = Engine(FakeRunner(), EngineConfig())
    assert not engine.ready
    with pytest.raises(NotServing):
        engine.submit(says(2))
    with running(engine):
        assert engine.ready
    assert not engine.ready
    with pytest.raises(NotServing):
        engine.submit(says(2))
    engine.stop()


# ---- leaving


async def test_a_cancel_frees_the_row_before_the_next_frame() -> None:
    with stepping(max_streams=1) as (engine, steps):
        leaving = engine.submit(ENDLESS)
        assert steps.next().step == (1,)
        next_one = engine.submit(says(2, seed=2))
        leaving.cancel()
        leaving.cancel()
        step = steps.allow()
        assert (step.start, step.step, step.rows) == ((2,), (2,), (0,))
        steps.open()
        assert np.array_equal(await pcm_of(next_one), tone(2, 0, 2))
        assert (engine.stats().running, engine.stats().queued) == (0, 0)


async def test_a_cancel_in_the_queue_keeps_the_order_of_the_others() -> None:
    with stepping(max_streams=1) as (engine, steps):
        running_, leaving, last = (engine.submit(says(2, seed=seed)) for seed in (1, 2, 3))
        steps.next()
        leaving.cancel()
        steps.open()
        assert np.array_equal(await pcm_of(running_), tone(1, 0, 2))
        assert np.array_equal(await pcm_of(last), tone(3, 0, 2))
        assert {utterance_id for step in steps.taken for utterance_id in step.start} == {1, 3}


async def test_a_reader_that_leaves_its_block_cancels() -> None:
    with stepping(max_streams=1) as (engine, steps):
        async with engine.submit(ENDLESS) as stream:
            steps.next()
            steps.allow()
            await soon(anext(stream))
        waiting = engine.submit(says(2, seed=2))
        assert steps.allow().step == (2,)
        steps.open()
        assert np.array_equal(await pcm_of(waiting), tone(2, 0, 2))


async def test_a_reader_that_fails_cancels() -> None:
    with stepping(max_streams=1) as (engine, steps):

        async def read() -> None:
            async with engine.submit(ENDLESS):
                steps.next()
                raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            await read()
        engine.submit(says(2))
        assert steps.allow().step == (2,)


async def test_a_cancel_from_another_task_ends_a_reader_that_waits() -> None:
    with stepping() as (engine, steps):
        stream = engine.submit(ENDLESS)
        steps.next()
        started = asyncio.Event()

        async def read() -> list[AudioChunk]:
            started.set()
            return [chunk async for chunk in stream]

        reader = asyncio.create_task(read())
        await started.wait()  # and the reader has gone on until there was nothing to read
        stream.cancel()
        assert await soon(reader) == []
        assert stream.finished is None


async def test_leaving_after_the_end_is_no_cancel() -> None:
    with running(Engine(FakeRunner(), EngineConfig())) as engine:
        async with engine.submit(says(2)) as stream:
            chunks, finished = await soon(collect(stream))
        stream.cancel()
        assert (join(chunks, finished).chunk_frames, finished.reason) == ((1, 1), "stop")
        assert np.array_equal(await pcm_of(engine.submit(says(3))), tone(1, 0, 3))


async def test_a_slow_reader_rests_its_row_and_loses_nothing() -> None:
    frames = 40
    with stepping(max_unread_s=0.4, max_chunk_frames=1) as (engine, steps):  # five frames
        slow, quick = engine.submit(says(frames, seed=1)), engine.submit(says(frames, seed=2))
        steps.open()
        assert np.array_equal(await pcm_of(quick), tone(2, 0, frames))
        assert slow.unread_frames <= 6 < frames
        assert np.array_equal(await pcm_of(slow), tone(1, 0, frames))


def test_a_reader_whose_loop_has_closed_costs_its_own_row_alone() -> None:
    with stepping(max_streams=1) as (engine, steps):

        async def submit_and_forget() -> None:
            engine.submit(ENDLESS)
            steps.next()

        asyncio.run(submit_and_forget())

        async def speak_later() -> None:
            stream = engine.submit(says(2, seed=2))
            assert steps.allow().step == (2,)
            steps.open()
            assert np.array_equal(await pcm_of(stream), tone(2, 0, 2))

        asyncio.run(speak_later())
        assert engine.ready


# ---- stopping and breaking


async def test_drain_finishes_what_was_accepted_and_takes_nothing_new() -> None:
    with stepping(max_streams=1) as (engine, steps):
        running_, queued = engine.submit(says(3, seed=1)), engine.submit(says(3, seed=2))
        steps.next()
        engine.drain()
        assert not engine.ready
        with pytest.raises(NotServing):
            engine.submit(says(3))
        steps.open()
        assert np.array_equal(await pcm_of(running_), tone(1, 0, 3))
        assert np.array_equal(await pcm_of(queued), tone(2, 0, 3))


async def test_stop_fails_what_runs_and_what_waits() -> None:
    with stepping(max_streams=1, max_unread_s=0.4) as (engine, steps):
        streams = [engine.submit(ENDLESS), engine.submit(says(2))]
        steps.next()
        stopping = asyncio.create_task(asyncio.to_thread(engine.stop))
        steps.open()
        await soon(stopping)
        for stream in streams:
            with pytest.raises(NotServing):
                await soon(collect(stream))
        assert (engine.ready, engine.stats().running, engine.stats().queued) == (False, 0, 0)


async def test_a_broken_runner_fails_everybody_and_the_engine_is_no_longer_ready(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, logger="vivavoce_engine.front.thread")
    with stepping(max_streams=2) as (engine, steps):
        streams = [engine.submit(says(9))]
        steps.next()
        streams.append(engine.submit(says(9)))
        steps.allow()
        streams.append(engine.submit(says(9)))  # waits: both rows are taken, and the engine has not heard of it yet
        steps.fail(RuntimeError("no memory"))
        for stream in streams:
            with pytest.raises(NotServing, match="no memory"):
                await soon(collect(stream))
            assert not engine.ready
        with pytest.raises(NotServing):
            engine.submit(says(2))
        assert (engine.stats().running, engine.stats().queued) == (0, 0)


async def test_a_request_that_arrives_while_the_engine_breaks_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="vivavoce_engine.front.thread")
    with stepping() as (engine, steps):
        engine.submit(ENDLESS)
        steps.next()
        prompt = builder_of(engine.text).prompt

        def break_first(request: SynthesisRequest) -> Prompt:
            steps.fail(RuntimeError("no memory"))
            engine._thread.join(HUNG_S)
            return prompt(request)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FakeText, "prompt", lambda _, request: break_first(request))
            with pytest.raises(NotServing):
                engine.submit(says(2))


async def test_a_leaked_row_is_found_when_the_engine_is_idle(caplog: pytest.LogCaptureFixture) -> None:
    with running(Engine(FakeRunner(), EngineConfig())) as engine:
        await soon(collect(engine.submit(says(2))))
        engine._loop._scheduler._rows.take()
        await soon(collect(engine.submit(says(2))))
        engine._thread.join(HUNG_S)
        assert not engine.ready
    assert "owned by utterances []" in caplog.text


def test_settings_name_what_is_impossible() -> None:
    for name in ("max_streams", "max_queue", "max_context", "max_prefills_per_step", "max_chunk_frames"):
        with pytest.raises(ValueError, match=f"{name} must be above 0, not 0"):
            EngineConfig(**{name: 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_unread_s must be above 0, not nan"):
        EngineConfig(max_unread_s=float("nan"))
    with pytest.raises(ValueError, match="kv_positions must be 4096 or more"):
        EngineConfig(kv_positions=4095)
    for name in ("max_streams", "kv_positions"):
        with pytest.raises(ValueError, match=f"{name} must be a number above 0, or auto; not 'many'"):
            EngineConfig(**{name: "many"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "pages"),
    [
        ({}, 8 * 16),
        ({"max_streams": 1}, 64),
        ({"max_streams": 100}, 100 * 16),
        ({"max_streams": 3, "max_context": 200}, 3 * 4),
        ({"kv_positions": 4097}, 65),
    ],
)
def test_pages_of_the_cache_by_settings(settings: dict[str, int], pages: int) -> None:
    assert EngineConfig(**settings).kv_pages == pages  # type: ignore[arg-type]


def test_an_engine_in_this_process_runs_with_what_loading_has_settled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settled = Parts(FakeRunner(), {}, None, EngineConfig(max_streams=3))
    monkeypatch.setattr(load, "locate_checkpoint", lambda _: tmp_path)
    monkeypatch.setattr(load, "load_parts", lambda *_: settled)
    assert load.load_engine("any", EngineConfig()).rows == 3
    monkeypatch.setattr(load, "load_parts", lambda *_: Parts(FakeRunner(), {}))
    assert load.load_engine("any", EngineConfig(max_streams=5)).rows == 5
