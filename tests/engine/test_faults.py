"""A fault ends only its own utterance. Its neighbours continue as if it had not been there."""

import asyncio
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np
import pytest
from vivavoce_engine import (
    EndlessSpeech,
    Engine,
    EngineConfig,
    EngineError,
    NotServing,
    SynthesisFailed,
    SynthesisRequest,
)
from vivavoce_engine.batching.faults import failure_of, reason_of
from vivavoce_engine.batching.isolation import failing_for_memory
from vivavoce_engine.batching.runner import Outcome, PromptBuilder
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.batching.sequence import ENDLESS_FRAMES, ENDLESS_FRAMES_PER_TOKEN, SAME_FRAMES, Sequence
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.errors import is_device_lost, is_out_of_memory
from vivavoce_engine.fake_runner import FakeRunner
from vivavoce_engine.request import UtteranceOptions
from vivavoce_engine.text.prompt import Prompt

from tests.engine.conftest import Checkpoints
from tests.support.cpu_runners import MakeRunner
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

    def live_text(self, word_times: bool = False) -> object:
        return self._inner.live_text(word_times)

    def tokens_to_start(self, options: UtteranceOptions) -> int:
        return self._inner.tokens_to_start(options)

    def build(self, options: UtteranceOptions, text: SequenceOf[int], complete: bool) -> Prompt:
        return self._inner.build(options, text, complete)

    @property
    def end_of_text_id(self) -> int:
        return self._inner.end_of_text_id


@pytest.mark.parametrize("where", ["prompt", "third frame"])
def test_a_row_that_fails_takes_nobody_with_it(checkpoints: Checkpoints, make_runner: MakeRunner, where: str) -> None:
    config = EngineConfig(max_streams=4, max_context=128, max_prefills_per_step=4, device="cpu", dtype="float32")
    runner = make_runner("tiny", read_checkpoint(checkpoints("tiny", "custom_voice")), config)
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


def test_a_request_may_name_the_frames_past_which_its_speech_is_endless() -> None:
    request = SynthesisRequest("a long text", speaker="heart", endless_frames=2)
    sequence = Sequence(replace(pending(1, max_frames=1000), request=request), row=0)
    for _ in range(3):
        assert not sequence.runs_away
        sequence.add_frame()
        sequence.confirm_frame(end_of_speech=False)
    assert sequence.runs_away


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


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB free.",
        "CUDA error: out of memory",
        "HIP error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cuFFT error: CUFFT_ALLOC_FAILED",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.",
    ],
)
def test_a_lack_of_memory_is_no_loss_of_the_device(text: str) -> None:
    error = RuntimeError(text)
    assert is_out_of_memory(error)
    assert not is_device_lost(error)
    assert reason_of(error) == "out_of_memory"
    assert isinstance(failure_of(error), NotServing)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: unspecified launch failure",
        "HIP error: an illegal memory access was encountered",
        "Triton Error [CUDA]: an illegal memory access was encountered",
        "Triton Error [HIP]: unspecified launch failure",
    ],
)
def test_other_errors_of_a_device_are_its_loss(text: str) -> None:
    error = RuntimeError(text)
    assert is_device_lost(error)
    assert reason_of(error) == "device"


@pytest.mark.parametrize("text", ["out of resource: shared memory, Required: 184320", "index 7 is out of bounds"])
def test_an_error_of_the_work_is_neither(text: str) -> None:
    error = RuntimeError(text)
    assert not is_out_of_memory(error)
    assert not is_device_lost(error)
    assert isinstance(failure_of(error), SynthesisFailed)


def test_work_that_changes_rows_in_place_fails_them_all_for_memory_alone() -> None:
    sequences = [Sequence(pending(number), row=number) for number in (1, 2)]
    outcome = Outcome(Plan((), (), ()), {}, {}, {})
    with failing_for_memory(sequences, outcome):
        raise RuntimeError("CUDA error: out of memory")
    assert {number: type(error) for number, error in outcome.failed.items()} == {1: NotServing, 2: NotServing}
    with pytest.raises(ValueError, match="a bug"), failing_for_memory(sequences, outcome):
        raise ValueError("a bug")


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
