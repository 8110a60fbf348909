"""A device beside the host: a step begins before the one before it has ended, and surplus frames are not heard."""

from dataclasses import replace

import numpy as np
import pytest
from vivavoce_engine import EndlessSpeech, Engine, EngineConfig, SynthesisFailed, SynthesisRequest, collect
from vivavoce_engine.batching.runner import Step
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.fake_runner import FakeRunner, tone

from tests.support.speaking import join, running, speak
from tests.support.stepping import BesideRunner, LateRunner


def request(frames: int, seed: int = 0, first_chunk_frames: int = 1, max_frames: int | None = None) -> SynthesisRequest:
    return SynthesisRequest(
        "x" * frames, speaker="heart", seed=seed, first_chunk_frames=first_chunk_frames, max_frames=max_frames
    )


def test_the_next_step_begins_before_the_last_is_waited_for() -> None:
    runner = LateRunner(FakeRunner())
    with running(Engine(runner, EngineConfig())) as engine:
        (speech,) = speak(engine, request(4))
    assert len(speech.codes) == 4
    assert runner.moments[:7] == [
        (0, "begins"), (1, "begins"), (0, "ends"), (2, "begins"), (1, "ends"), (3, "begins"), (2, "ends"),
    ]  # fmt: skip
    assert sorted(number for number, what in runner.moments if what == "ends") == list(range(len(runner.moments) // 2))


@pytest.mark.parametrize("made", [LateRunner, BesideRunner])
@pytest.mark.parametrize("max_chunk_frames", [1, 2, 8])
@pytest.mark.parametrize("first_chunk_frames", [1, 3])
def test_every_length_is_heard_whole_and_no_frame_more(
    made: type[LateRunner] | type[BesideRunner], max_chunk_frames: int, first_chunk_frames: int
) -> None:
    lengths = range(2, 24)
    with running(Engine(made(FakeRunner()), EngineConfig(max_streams=3, max_chunk_frames=max_chunk_frames))) as engine:
        speeches = speak(engine, *(request(length, length, first_chunk_frames) for length in lengths))
        assert engine.stats().running == 0
        assert engine.ready, "a row has leaked"
    for length, speech in zip(lengths, speeches, strict=True):
        assert (speech.finished.frames, speech.finished.reason) == (length, "stop")
        assert np.array_equal(speech.codes[:, 0], np.arange(length))
        assert np.array_equal(speech.pcm, tone(length, 0, length))


def test_the_frame_limit_is_known_at_once() -> None:
    with running(Engine(LateRunner(FakeRunner()), EngineConfig())) as engine:
        (speech,) = speak(engine, request(10, max_frames=3))
        assert engine.stats().frames == 3, "no frame is begun after the last allowed"
    assert (speech.finished.frames, speech.finished.reason) == (3, "length")


def test_an_end_is_known_at_once_where_only_audio_is_late() -> None:
    """No frame is made for nothing."""
    with running(Engine(BesideRunner(FakeRunner(), decoding_ms=50), EngineConfig())) as engine:
        (speech,) = speak(engine, request(9))
        assert engine.stats().frames == 9
    assert (speech.finished.frames, speech.finished.reason) == (9, "stop")


class LateFault(BesideRunner):
    """The audio of the utterance with this number fails in its third step, which is known when it is waited for."""

    def __init__(self, number: int) -> None:
        super().__init__(FakeRunner())
        self._number, self._steps = number, 0

    def launch(self, plan: Plan) -> Step:
        step = super().launch(plan)
        self._steps += 1
        if self._steps != 3:
            return step

        def wait() -> None:
            step.wait()
            step.outcome.audio.pop(self._number, None)
            step.outcome.failed[self._number] = SynthesisFailed("a fault in a piece")

        return replace(step, wait=wait)


async def test_audio_that_fails_late_ends_its_own_utterance() -> None:
    with running(Engine(LateFault(2), EngineConfig(max_streams=2))) as engine:
        stays, fails = engine.submit(request(40, seed=1)), engine.submit(request(40, seed=2))
        follows = engine.submit(request(12, seed=3))
        with pytest.raises(SynthesisFailed, match="a fault in a piece"):
            await collect(fails)
        speeches = [join(*await collect(stream)) for stream in (stays, follows)]
        assert engine.stats().running == 0
        assert engine.ready, "a row has leaked"
    for speech, seed, frames in zip(speeches, (1, 3), (40, 12), strict=True):
        assert np.array_equal(speech.pcm, tone(seed, 0, frames))


def test_an_end_on_the_last_allowed_frame_was_not_cut() -> None:
    with running(Engine(LateRunner(FakeRunner()), EngineConfig())) as engine:
        (speech,) = speak(engine, request(3, max_frames=3))
    assert (speech.finished.frames, speech.finished.reason) == (3, "stop")


async def test_one_that_leaves_while_its_frame_is_under_way_costs_nobody_anything() -> None:
    with running(Engine(LateRunner(FakeRunner()), EngineConfig(max_streams=2))) as engine:
        stays, leaves = engine.submit(request(40, seed=1)), engine.submit(request(1000, seed=2))
        async for _ in leaves:
            break
        leaves.cancel()
        follows = engine.submit(request(12, seed=3))
        speeches = [join(*await collect(stream)) for stream in (stays, follows)]
    for speech, seed, frames in zip(speeches, (1, 3), (40, 12), strict=True):
        assert np.array_equal(speech.pcm, tone(seed, 0, frames))


async def test_endless_speech_is_ended() -> None:
    runner = LateRunner(FakeRunner(frames_per_character=1e6))
    with running(Engine(runner, EngineConfig())) as engine, pytest.raises(EndlessSpeech, match="in 276 frames"):
        await collect(engine.submit(request(1)))
