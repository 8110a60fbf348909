"""No request speaks with another request's reference: eight clones at once say what each says alone."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from vivavoce_engine import AudioStream, Engine, EngineConfig, SynthesisRequest, VoiceReference, collect
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.load import load_engine

from tests.engine.conftest import Checkpoints
from tests.support.cpu_runners import MakeRunner
from tests.support.recordings import voice_like, wav
from tests.support.speaking import Speech, join, running, speak
from tests.support.stepping import WatchedRunner
from tests.support.waiting import HUNG_S

PCM_TOLERANCE = 1e-5
CLONES = 8
REF_TEXTS = (
    "The lazy dog",
    "it's fine",
    "慢一点 Hello",
    "The quick brown fox jumps over the lazy dog, and then it speaks.",
)
TEXTS = ("Hello, world! The quick brown fox.", "你好。今天天气很好。", "Yes.", "It's 7:45, isn't it?")


def config(rows: int) -> EngineConfig:
    return EngineConfig(max_streams=rows, max_context=256, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def base(checkpoints: Checkpoints) -> Path:
    return checkpoints("tiny", "base")


@pytest.fixture(scope="module")
def requests(base: Path) -> list[SynthesisRequest]:
    """Eight in-context requests with eight references, sampled, in both text modes."""
    clone = load_engine(str(base), config(1)).voices.clone
    made: list[SynthesisRequest] = []
    recordings: set[bytes] = set()
    for number in range(CLONES):
        reference = clone(wav(voice_like(number, 1.1 + 0.2 * number)), REF_TEXTS[number % len(REF_TEXTS)])
        assert reference.codes is not None
        recordings.add(reference.codes.tobytes())
        made.append(
            SynthesisRequest(
                TEXTS[number // 2 % len(TEXTS)],
                seed=number,
                streaming_text=number % 2 == 1,
                max_frames=12,
                first_chunk_frames=1 + number % 3,
                reference=reference,
            )
        )
    assert len(recordings) == CLONES
    return made


@pytest.fixture(scope="module")
def alone(base: Path, requests: list[SynthesisRequest], make_runner: MakeRunner) -> list[Speech]:
    with running(Engine(make_runner("base", read_checkpoint(base), config(1)), config(1))) as engine:
        return [speak(engine, request)[0] for request in requests]


def assert_same(number: int, actual: Speech, expected: Speech) -> None:
    assert np.array_equal(actual.codes, expected.codes), number
    assert actual.finished == expected.finished, number
    assert np.abs(actual.pcm - expected.pcm).max() < PCM_TOLERANCE, number


class Cues:
    """Called on the event loop before the engine's n-th step, which waits for it."""

    def __init__(self, cues: dict[int, Callable[[], None]]) -> None:
        self.rows: list[set[int]] = []
        self._cues = cues
        self._loop = asyncio.get_running_loop()

    def __call__(self, plan: Plan) -> None:
        cue = self._cues.get(len(self.rows))
        self.rows.append({sequence.row for sequence in plan.step})
        if cue is not None:
            asyncio.run_coroutine_threadsafe(self._give(cue), self._loop).result(HUNG_S)

    async def _give(self, cue: Callable[[], None]) -> None:
        cue()


async def test_clones_that_join_leave_and_are_cancelled_do_not_hear_each_other(
    base: Path, requests: list[SynthesisRequest], alone: list[Speech], make_runner: MakeRunner
) -> None:
    """Rows that others left, by ending or by being cancelled, go to clones of other references, and to one whose
    voice is an embedding alone."""
    streams: dict[int, AudioStream] = {}
    doomed: list[AudioStream] = []
    all_entered = asyncio.Event()

    def enter(*numbers: int) -> None:
        streams.update({number: engine.submit(requests[number]) for number in numbers})
        if len(streams) == CLONES:
            all_entered.set()

    def enter_and_leave(*numbers: int) -> None:
        doomed.extend(engine.submit(replace(requests[number], seed=99, max_frames=50)) for number in numbers)

    def leave() -> None:
        for stream in doomed:
            stream.cancel()

    assert requests[0].reference is not None
    unlike = replace(requests[0], reference=VoiceReference(-requests[0].reference.embedding))
    cues = Cues(
        {
            1: lambda: enter(1, 2),
            2: lambda: doomed.append(engine.submit(unlike)),
            4: leave,
            5: lambda: enter(3, 4, 5),
            8: lambda: enter_and_leave(0, 7),
            10: leave,
            11: lambda: enter(6, 7),
        }
    )
    runner = make_runner("base", read_checkpoint(base), config(CLONES))
    with running(Engine(WatchedRunner(runner, cues), config(CLONES))) as engine:
        enter_and_leave(6, 5, 4)
        enter(0)
        await asyncio.wait_for(all_entered.wait(), HUNG_S)
        for number, stream in streams.items():
            assert_same(number, join(*await collect(stream)), alone[number])
    assert max(len(rows) for rows in cues.rows) >= 5, "they did not speak together"
    assert len(cues.rows) < sum(len(speech.codes) for speech in alone) / 2


def test_all_clones_at_once_and_again_in_other_rows(
    base: Path, requests: list[SynthesisRequest], alone: list[Speech], make_runner: MakeRunner
) -> None:
    with running(Engine(make_runner("base", read_checkpoint(base), config(CLONES)), config(CLONES))) as engine:
        for order in (range(CLONES), reversed(range(CLONES))):
            numbers = list(order)
            together = speak(engine, *(requests[number] for number in numbers))
            for number, speech in zip(numbers, together, strict=True):
                assert_same(number, speech, alone[number])


def test_another_reference_is_another_voice(
    alone: list[Speech], requests: list[SynthesisRequest], base: Path, make_runner: MakeRunner
) -> None:
    """The comparison above would see a mix-up: with a neighbour's reference the same request says something else."""
    config_here = config(4)
    with running(Engine(make_runner("base", read_checkpoint(base), config_here), config_here)) as engine:
        swapped = [
            replace(request, reference=requests[(number + 1) % CLONES].reference)
            for number, request in enumerate(requests)
        ]
        for number, speech in enumerate(speak(engine, *swapped)):
            assert not np.array_equal(speech.codes, alone[number].codes), number
