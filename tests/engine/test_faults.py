"""A fault ends only its own utterance. Its neighbours continue as if it had not been there."""

import asyncio
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np
import pytest
from vivavoce_engine import EndlessSpeech, Engine, EngineConfig, EngineError, SynthesisFailed, SynthesisRequest
from vivavoce_engine.batching.runner import PromptBuilder
from vivavoce_engine.batching.sequence import ENDLESS_FRAMES, ENDLESS_FRAMES_PER_TOKEN, SAME_FRAMES, Sequence
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.cpu.runner import TorchRunner
from vivavoce_engine.fake_runner import FakeRunner
from vivavoce_engine.request import UtteranceOptions
from vivavoce_engine.text.prompt import Prompt

from tests.engine.conftest import Checkpoints
from tests.support.speaking import listen, running
from tests.support.stepping import Steps, WatchedRunner, stepping
from tests.support.utterances import pending

NO_SUCH_ID = 10**6
GOOD = SynthesisRequest("Hello, world!", speaker="ryan", language="english", seed=3, max_frames=12, streaming_text=True)


class PoisonedText:
    """Prompts of another builder, but texts that begin with "poison" get an id that no embedding has."""

    def __init__(self, inner: PromptBuilder, where: str) -> None:
        self._inner = inner
        self._where = where

    def prompt(self, request: SynthesisRequest) -> Prompt:
        prompt = self._inner.prompt(request)
        if not request.text.startswith("poison"):
            return prompt
        if self._where == "prompt":
            return replace(prompt, text_ids=(*prompt.text_ids[:-1], NO_SUCH_ID))
        return replace(prompt, trailing_ids=(*prompt.trailing_ids[:2], NO_SUCH_ID, *prompt.trailing_ids[3:]))

    def live_text(self) -> object:
        return self._inner.live_text()

    def tokens_to_start(self, options: UtteranceOptions) -> int:
        return self._inner.tokens_to_start(options)

    def build(self, options: UtteranceOptions, text: SequenceOf[int], complete: bool) -> Prompt:
        return self._inner.build(options, text, complete)

    @property
    def end_of_text_id(self) -> int:
        return self._inner.end_of_text_id


@pytest.mark.parametrize("where", ["prompt", "third frame"])
def test_a_row_that_fails_takes_nobody_with_it(checkpoints: Checkpoints, where: str) -> None:
    config = EngineConfig(max_streams=4, max_context=128, max_prefills_per_step=4, device="cpu", dtype="float32")
    runner = TorchRunner("tiny", read_checkpoint(checkpoints("tiny", "custom_voice")), config)
    poisoned = replace(GOOD, text="poison in the middle of it")

    async def together(engine: Engine) -> list[object]:
        requests = (GOOD, poisoned, replace(GOOD, seed=4))
        return await asyncio.gather(*(listen(engine, request) for request in requests), return_exceptions=True)

    with running(Engine(WatchedRunner(runner, text=PoisonedText(runner.text, where)), config)) as engine:  # type: ignore[arg-type]
        before = asyncio.run(listen(engine, GOOD))
        first, failure, _ = asyncio.run(together(engine))
        assert isinstance(failure, SynthesisFailed)
        assert np.array_equal(first.codes, before.codes)  # type: ignore[attr-defined]
        assert engine.stats().running == 0
        assert engine.ready
        assert np.array_equal(asyncio.run(listen(engine, GOOD)).codes, before.codes)


def test_endless_speech_is_ended_with_an_error() -> None:
    heard: list[int] = []

    async def speak(engine: Engine) -> None:
        async for chunk in engine.submit(SynthesisRequest("ab", speaker="heart")):
            heard.append(chunk.frames)

    with running(Engine(FakeRunner(frames_per_character=10_000), EngineConfig(max_streams=1))) as engine:
        with pytest.raises(EndlessSpeech, match="did not end"):
            asyncio.run(speak(engine))
        assert engine.stats().running == 0
    ceiling = ENDLESS_FRAMES + 2 * ENDLESS_FRAMES_PER_TOKEN
    assert ceiling - 8 <= sum(heard) <= ceiling + 8


def test_a_limit_that_the_caller_set_is_no_fault() -> None:
    async def speak(engine: Engine) -> str:
        return (await listen(engine, SynthesisRequest("ab", speaker="heart", max_frames=100))).finished.reason

    with running(Engine(FakeRunner(frames_per_character=10_000), EngineConfig(max_streams=1))) as engine:
        assert asyncio.run(speak(engine)) == "length"


def test_the_same_frame_over_and_over_is_endless_speech() -> None:
    sequence = Sequence(pending(1, max_frames=1000), row=0)
    frame, other = [7, 8, 9], [7, 8, 1]
    sequence.count_repeats(np.array([frame] * (SAME_FRAMES - 1), np.int16))
    assert not sequence.runs_away
    sequence.count_repeats(np.array([other], np.int16))
    sequence.count_repeats(np.array([frame] * (SAME_FRAMES - 1), np.int16))
    assert not sequence.runs_away
    sequence.count_repeats(np.array([frame], np.int16))
    assert sequence.runs_away


def test_errors_form_one_tree() -> None:
    assert issubclass(EndlessSpeech, SynthesisFailed)
    assert issubclass(SynthesisFailed, EngineError)


def test_a_step_that_hangs_shows_in_the_stats() -> None:
    async def speak(engine: Engine, steps: Steps) -> None:
        engine.submit(SynthesisRequest("abc", speaker="heart"))
        steps.next()
        first = engine.stats().step_s
        assert first > 0
        assert engine.stats().step_s > first

    with stepping() as (engine, steps):
        assert engine.stats().step_s == 0
        asyncio.run(speak(engine, steps))
