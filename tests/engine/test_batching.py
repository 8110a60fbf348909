"""An utterance sounds the same in any batch, in any row, and in pieces of any length: bit for bit."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from vivavoce_bench.cards.layout import ShapeName
from vivavoce_engine import (
    AudioStream,
    Engine,
    EngineConfig,
    Rejected,
    Sampling,
    SamplingParams,
    SynthesisRequest,
    collect,
)
from vivavoce_engine.batching.runner import builder_of
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.cpu import runner as cpu_runner
from vivavoce_engine.cpu.runner import TorchRunner
from vivavoce_engine.cpu.sampling import uniform

from tests.engine.conftest import Checkpoints
from tests.support.cpu_runners import CpuRunner, MakeRunner
from tests.support.speaking import GREEDY, Speech, join, running, speak
from tests.support.stepping import LateRunner, Step, WatchedRunner, step_of
from tests.support.waiting import HUNG_S

HOT = Sampling(
    SamplingParams(temperature=1.2, top_k=0, top_p=0.9, repetition_penalty=1.2), SamplingParams(temperature=1.1)
)
REQUESTS = {
    "full": SynthesisRequest(
        "Hello, world! The quick brown fox.", speaker="ryan", language="english", seed=1, max_frames=16
    ),
    "streaming": SynthesisRequest("你好。今天天气很好。", speaker="eric", seed=2, max_frames=12, streaming_text=True),
    "one_word": SynthesisRequest(
        "Hello", speaker="serena", language="german", seed=2**63 - 1, max_frames=9, first_chunk_frames=3
    ),
    "hot": SynthesisRequest(
        "It's 7:45, isn't it?",
        speaker="vivian",
        language="auto",
        sampling=HOT,
        seed=0,
        max_frames=14,
        streaming_text=True,
    ),
    "greedy": SynthesisRequest(
        "The lazy dog jumps over.", speaker="ryan", language="chinese", sampling=GREEDY, max_frames=11
    ),
}
"""Sampled with seeds, both text modes, every mix of settings: what an engine meets."""
SHAPES_HERE: tuple[ShapeName, ...] = ("tiny", "tiny_32")
Speeches = dict[str, Speech]


@pytest.fixture(scope="module")
def runners(checkpoints: Checkpoints, make_runner: MakeRunner) -> Callable[..., CpuRunner]:
    def make(shape: ShapeName, **settings: int) -> CpuRunner:
        return make_runner(shape, read_checkpoint(checkpoints(shape, "custom_voice")), config_of(**settings))

    return make


def config_of(**settings: int) -> EngineConfig:
    given: dict[str, Any] = {"max_context": 128, "max_streams": 4, **settings}
    return EngineConfig(**given, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def alone(runners: Callable[..., CpuRunner]) -> dict[ShapeName, Speeches]:
    """What each request says when it is the only one, one after the other in one row."""
    speeches: dict[ShapeName, Speeches] = {}
    for shape in SHAPES_HERE:
        with running(Engine(runners(shape, max_streams=1), config_of(max_streams=1))) as engine:
            speeches[shape] = {name: speak(engine, request)[0] for name, request in REQUESTS.items()}
    return speeches


@pytest.fixture(scope="module")
def engine(runners: Callable[..., CpuRunner]) -> Iterator[Engine]:
    with running(Engine(runners("tiny"), config_of())) as engine:
        yield engine


def assert_same(name: str, actual: Speech, expected: Speech) -> None:
    assert np.array_equal(actual.codes, expected.codes), name
    assert actual.finished == expected.finished, name
    assert actual.pcm.shape == expected.pcm.shape == (1920 * len(actual.codes),), name
    assert actual.pcm.tobytes() == expected.pcm.tobytes(), name


# ---- who else speaks


@pytest.mark.parametrize("shape", SHAPES_HERE)
def test_all_at_once_say_what_each_says_alone(
    shape: ShapeName, runners: Callable[..., CpuRunner], alone: dict[ShapeName, Speeches]
) -> None:
    with running(Engine(runners(shape), config_of())) as engine:
        together = speak(engine, *REQUESTS.values())
        steps = engine.stats().steps
    for name, speech in zip(REQUESTS, together, strict=True):
        assert_same(name, speech, alone[shape][name])
    assert steps < sum(len(speech.codes) for speech in together) / 2, "they were not batched"


def test_a_device_that_works_beside_the_host_says_the_same(
    runners: Callable[..., CpuRunner], alone: dict[ShapeName, Speeches]
) -> None:
    """Two rows for five: an end is known a step late, so that there is a frame too much in a row that is used again.
    Each frame is a piece of its own, so that what is too much is decoded too."""
    settings = {"max_streams": 2, "max_chunk_frames": 1}
    with running(Engine(LateRunner(runners("tiny", **settings)), config_of(**settings))) as engine:
        speeches = speak(engine, *REQUESTS.values())
    for name, speech in zip(REQUESTS, speeches, strict=True):
        assert_same(name, speech, alone["tiny"][name])
    assert {speech.finished.reason for speech in speeches} == {"stop", "length"}, "no end was known late"


def test_rows_that_other_utterances_have_used_are_as_good_as_new(
    engine: Engine, alone: dict[ShapeName, Speeches]
) -> None:
    """Three rounds in four rows, in another order each time."""
    names = list(REQUESTS)
    for turn in range(3):
        order = names[turn:] + names[:turn]
        for name, speech in zip(order, speak(engine, *(REQUESTS[name] for name in order)), strict=True):
            assert_same(name, speech, alone["tiny"][name])


class Conductor:
    """Says when who enters and leaves: `cues[n]` is called before engine step n, and the engine waits for it."""

    def __init__(self, cues: dict[int, Callable[[], None]]) -> None:
        self.steps: list[Step] = []
        self._cues = cues
        self._loop = asyncio.get_running_loop()

    def __call__(self, plan: Plan) -> None:
        cue = self._cues.get(len(self.steps))
        self.steps.append(step_of(plan))
        if cue is not None:
            asyncio.run_coroutine_threadsafe(self._give(cue), self._loop).result(HUNG_S)

    async def _give(self, cue: Callable[[], None]) -> None:
        cue()


async def test_neighbours_that_join_leave_and_are_cancelled_change_nothing(
    runners: Callable[..., CpuRunner], alone: dict[ShapeName, Speeches]
) -> None:
    """One speaks from the start to its end, while others come and go, one of them in a cancelled one's row."""
    streams: dict[str, AudioStream] = {}
    assert len(alone["tiny"]["greedy"].codes) > 6, "it ends before it is cancelled"

    cues: dict[int, Callable[[], None]] = {}
    conductor = Conductor(cues)
    conducted = Engine(WatchedRunner(runners("tiny"), conductor), config_of())

    def enter(name: str) -> Callable[[], None]:
        return lambda: streams.update({name: conducted.submit(REQUESTS[name])})

    cues |= {
        0: enter("greedy"),
        2: enter("streaming"),
        4: lambda: streams["greedy"].cancel(),
        5: enter("hot"),
        7: enter("one_word"),
    }
    with running(conducted):
        enter("full")()
        speeches = {name: join(*await collect(streams[name])) for name in ("full", "streaming", "hot", "one_word")}
    for name, speech in speeches.items():
        assert_same(name, speech, alone["tiny"][name])
    steps = conductor.steps
    assert [step.step for step in steps[:6]] == [(1,), (1, 2), (1, 2), (1, 2, 3), (1, 2, 3), (1, 3)]
    assert (steps[6].start, steps[6].step, steps[6].rows) == ((4,), (1, 3, 4), (0, 2, 1))
    assert steps[8].start == (5,)


async def test_an_utterance_that_rests_goes_on_where_it_was(
    runners: Callable[..., CpuRunner], alone: dict[ShapeName, Speeches]
) -> None:
    """Its reader lags until the other has ended: the frames that the other makes leave its state alone."""
    config = replace(config_of(), max_unread_s=0.17)  # two frames
    with running(Engine(runners("tiny"), config)) as engine:
        slow, quick = engine.submit(REQUESTS["full"]), engine.submit(REQUESTS["one_word"])
        assert_same("one_word", join(*await collect(quick)), alone["tiny"]["one_word"])
        assert slow.unread_frames < 6
        assert_same("full", join(*await collect(slow)), alone["tiny"]["full"])


# ---- how its audio is cut


@pytest.mark.parametrize("max_chunk_frames", [1, 3, 8])
def test_sizes_of_pieces_change_nothing(
    max_chunk_frames: int, runners: Callable[..., CpuRunner], alone: dict[ShapeName, Speeches]
) -> None:
    config = config_of(max_chunk_frames=max_chunk_frames)
    runner = runners("tiny", max_chunk_frames=max_chunk_frames)
    capacity = runner.capacity
    with running(Engine(runner, config)) as engine:
        for first_chunk_frames in (1, 2, 5, 20):
            names = ("full", "streaming")
            requests = [replace(REQUESTS[name], first_chunk_frames=first_chunk_frames) for name in names]
            for name, speech in zip(names, speak(engine, *requests), strict=True):
                assert_same(name, speech, alone["tiny"][name])
                largest = capacity.largest_piece(len(names), max_chunk_frames)
                assert speech.chunk_frames[0] == min(first_chunk_frames, largest)
                assert max(speech.chunk_frames) <= largest


def test_a_smaller_frame_limit_is_a_prefix(engine: Engine, alone: dict[ShapeName, Speeches]) -> None:
    whole = alone["tiny"]["full"]
    for limit in (1, 2, 7):
        (speech,) = speak(engine, replace(REQUESTS["full"], max_frames=limit))
        assert np.array_equal(speech.codes, whole.codes[:limit])
        assert speech.pcm.tobytes() == whole.pcm[: 1920 * limit].tobytes()
        assert speech.finished.reason == "length"


# ---- seeds


def test_a_seed_decides_what_is_said(engine: Engine) -> None:
    request = replace(REQUESTS["full"], max_frames=6)
    seeds = [0, 1, 2, 2**32, 2**62, 2**63 - 1]
    speeches = speak(engine, *(replace(request, seed=seed) for seed in seeds))
    again = speak(engine, *(replace(request, seed=seed) for seed in reversed(seeds)))
    for seed, speech, repeated in zip(seeds, speeches, reversed(again), strict=True):
        assert_same(str(seed), repeated, speech)
    assert len({speech.codes.tobytes() for speech in speeches}) == len(seeds)


def test_each_draw_has_a_random_number_of_its_own(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of another row of the batch: seed, frame and codebook of every draw of two utterances."""
    draws: list[tuple[int, int, int]] = []

    def recording(seed: Tensor, frame: Tensor, codebook: int | Tensor) -> Tensor:
        books = [codebook] if isinstance(codebook, int) else codebook.flatten().tolist()
        draws.extend((*place, book) for place in zip(seed.tolist(), frame.tolist(), strict=True) for book in books)
        return uniform(seed, frame, codebook)

    monkeypatch.setattr(cpu_runner, "uniform", recording)
    runner = TorchRunner("tiny", read_checkpoint(checkpoints("tiny", "custom_voice")), config_of())
    with running(Engine(runner, config_of())) as engine:
        speak(engine, *(replace(REQUESTS["full"], seed=seed, max_frames=3) for seed in (5, 2**63 - 1)))
    frames = range(4)  # code 0 of the fourth frame is drawn to see whether the speech ends
    drawn = [(frame, codebook) for frame in frames for codebook in range(16) if frame < 3 or codebook == 0]
    assert sorted(draws) == [(seed, *place) for seed in (5, 2**63 - 1) for place in drawn]


def test_without_a_seed_each_time_is_another(engine: Engine) -> None:
    request = replace(REQUESTS["full"], seed=None, max_frames=3)
    assert len({speech.codes.tobytes() for speech in speak(engine, request, request, request)}) == 3


def test_a_greedy_utterance_needs_no_seed(engine: Engine, alone: dict[ShapeName, Speeches]) -> None:
    (speech,) = speak(engine, replace(REQUESTS["greedy"], seed=12345))
    assert_same("greedy", speech, alone["tiny"]["greedy"])


def test_the_talker_and_the_predictor_have_settings_of_their_own(engine: Engine) -> None:
    request = replace(REQUESTS["full"], max_frames=6)
    both, talker, predictor, none = (
        speak(engine, replace(request, sampling=Sampling(first, others)))[0].codes
        for first in (SamplingParams(), GREEDY.talker)
        for others in (SamplingParams(), GREEDY.predictor)
    )
    assert both[0, 0] == talker[0, 0] != none[0, 0] == predictor[0, 0]
    assert not np.array_equal(both[0, 1:], talker[0, 1:])
    assert not np.array_equal(predictor[0, 1:], none[0, 1:])


# ---- the context


@pytest.mark.parametrize("streaming_text", [False, True])
def test_a_text_longer_than_the_context_is_rejected_and_the_others_go_on(
    streaming_text: bool, engine: Engine, alone: dict[ShapeName, Speeches]
) -> None:
    too_long = replace(REQUESTS["full"], text="Hello, world! " * 100, streaming_text=streaming_text, max_frames=None)

    async def together() -> Speech:
        stream = engine.submit(REQUESTS["full"])
        with pytest.raises(Rejected) as rejected:
            engine.submit(too_long)
        assert rejected.value.param == "text"
        return join(*await collect(stream))

    assert_same("full", asyncio.run(together()), alone["tiny"]["full"])


def test_an_utterance_fills_the_context_to_its_last_position(
    runners: Callable[..., CpuRunner], alone: dict[ShapeName, Speeches]
) -> None:
    runner = runners("tiny", max_context=128)
    prefill = builder_of(runner.text).prompt(REQUESTS["full"]).prefill_tokens
    config = config_of(max_context=prefill + 5)
    with running(Engine(runners("tiny", max_context=prefill + 5), config)) as engine:
        (speech,) = speak(engine, replace(REQUESTS["full"], max_frames=None))
    assert np.array_equal(speech.codes, alone["tiny"]["full"].codes[:5])
    assert speech.finished.reason == "length"
