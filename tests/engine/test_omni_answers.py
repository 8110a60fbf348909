"""Answers of Qwen3-Omni on a tiny checkpoint: the reference's inputs, codes and samples, whenever the ids arrive.

tests/golden/omni_tiny.* hold what transformers 5.17.0 made in float32 of the same checkpoint.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from vivavoce_engine import (
    AudioChunk,
    Engine,
    EngineConfig,
    EngineError,
    Finished,
    Sampling,
    SamplingParams,
    SynthesisFailed,
    UtteranceOptions,
    collect,
)
from vivavoce_engine.batching.admission import Admission
from vivavoce_engine.batching.loop import EngineLoop
from vivavoce_engine.batching.messages import AppendText, Delivery, StreamEvent, Submit
from vivavoce_engine.batching.pending import Pending, TrailingText
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.cpu.runner import TorchRunner
from vivavoce_engine.load import make_runner
from vivavoce_engine.models.layers import RowView
from vivavoce_engine.models.prompts import axes_of, embed_prompt
from vivavoce_engine.process.worker import warm_up
from vivavoce_engine.text.answer import AnswerFrontend

from tests.support.golden import load_golden
from tests.support.omni_answers import OmniCase, SpokenCase, case_of, joined, omni_case
from tests.support.omni_checkpoints import folder_digest, omni_checkpoint
from tests.support.speaking import running
from tests.support.stepping import LateRunner
from tests.support.utterances import Listener
from tests.support.waiting import wait_until

CASES = ("text", "beijing", "one_token", "cut", "audio", "image", "chat")
SAMPLED = Sampling(SamplingParams(repetition_penalty=1.05), SamplingParams(temperature=1.0, top_k=50, top_p=0.8))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = omni_checkpoint(tmp_path_factory.mktemp("omni"))
    assert folder_digest(folder) == load_golden("omni_tiny").info["checkpoint_sha256"]
    return folder


@pytest.fixture(scope="module")
def runner(checkpoint: Path) -> TorchRunner:
    config = EngineConfig(max_context=160, max_streams=4, device="cpu", dtype="float32")
    return TorchRunner("omni", read_checkpoint(checkpoint), config)


@pytest.fixture(scope="module")
def engine(runner: TorchRunner) -> Iterator[Engine]:
    with running(Engine(runner, runner.config)) as engine:
        yield engine


class Read:
    """Values that a talker reads and gives back: inputs [positions, hidden] and hidden states, as they come."""

    def __init__(self, runner: TorchRunner, patch: pytest.MonkeyPatch) -> None:
        self.inputs: list[Tensor] = []
        self.hidden: list[Tensor] = []
        self.texts: list[int] = []
        """Text ids that are read behind the prompt."""
        talker, next_text = runner._talker.forward, runner._next_text

        def forward(x: Tensor, view: object) -> Tensor:
            hidden = talker(x, view)  # type: ignore[arg-type]
            self.inputs.append(x[0])
            self.hidden.append(hidden[0])
            return hidden

        def text_of(index: Tensor, frame: Tensor) -> Tensor:
            ids = next_text(index, frame)
            self.texts += ids.tolist()
            return ids

        patch.setattr(runner._talker, "forward", forward)
        patch.setattr(runner, "_next_text", text_of)


async def say(engine: Engine, case: OmniCase, pieces: Sequence[Sequence[int]], waits: Sequence[bool]) -> SpokenCase:
    """Speaks an answer whose ids arrive in `pieces`; before some of them all that can be heard has been heard."""
    answer = engine.open_answer(case.options(), case.prompt)
    chunks: list[AudioChunk] = []
    given_ids = 0
    for piece, wait in zip(pieces, waits, strict=True):
        answer.append_ids(piece)
        given_ids += len(piece)
        while wait and sum(chunk.frames for chunk in chunks) < min(given_ids, case.frames):
            chunks.append(await anext(answer.stream))
    answer.end()
    rest, finished = await collect(answer.stream)
    return joined([*chunks, *rest], finished)


@cache
def at_once(engine: Engine, name: str) -> SpokenCase:
    """The case with all of its ids at once."""
    case = case_of(engine, name)
    return asyncio.run(say(engine, case, [case.spoken], [False]))


def assert_identical(actual: SpokenCase, expected: SpokenCase) -> None:
    """Bit for bit."""
    assert np.array_equal(actual.codes, expected.codes)
    assert actual.pcm.tobytes() == expected.pcm.tobytes()
    # A speech that ends before its text knows as many tokens as have arrived.
    ends = [(each.finished.frames, each.finished.reason) for each in (actual, expected)]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", CASES)
def test_ids_that_come_one_by_one_are_read_as_the_reference_does(
    engine: Engine, runner: TorchRunner, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, read = case_of(engine, name), Read(runner, monkeypatch)
    spoken = asyncio.run(say(engine, case, [[each] for each in case.spoken], [True] * len(case.spoken)))
    inputs, hidden = torch.cat(read.inputs), torch.cat(read.hidden)
    prefill = torch.from_numpy(case.tensor("prefill"))
    torch.testing.assert_close(inputs[: len(prefill)], prefill, rtol=0, atol=1e-6)
    # The reference reads behind its last frame too, and draws the end there or reaches its limit.
    steps = torch.from_numpy(case.tensor("steps"))[: len(inputs) - len(prefill)]
    torch.testing.assert_close(inputs[len(prefill) :], steps, rtol=0, atol=1e-5)
    expected = torch.from_numpy(case.tensor("hidden"))
    found = hidden[len(prefill) - 1 :]
    torch.testing.assert_close(found, expected[: len(found)], rtol=0, atol=1e-5)
    assert len(found) == case.frames + case.ended
    pads = [engine.text.tokens.tts_pad] * (len(read.texts) - len(case.spoken) - 1)  # type: ignore[union-attr]
    text = [*case.spoken, engine.text.end_of_text_id, *pads]
    assert read.texts == text[: len(read.texts)]
    assert np.array_equal(spoken.codes, case.codes)
    wave = case.tensor("wave")
    assert len(spoken.pcm) == len(wave) == 1920 * case.frames - 555
    assert np.abs(spoken.pcm - wave).max() <= 1e-5
    assert (spoken.finished.reason == "stop") == case.ended
    print(f"{name}: prompt {len(prefill) - 1} positions, then read {read.texts}")


LONG_ANSWER = tuple(random.Random(3).choices(range(100, 360), k=14))


@dataclass(frozen=True)
class Talk:
    """A long answer to a golden prompt, drawn with a seed."""

    seed: int
    name: str = "chat"
    frames: int = 24
    answer: tuple[int, ...] = LONG_ANSWER


async def draw(engine: Engine, talk: Talk, pieces: Sequence[int], pause: random.Random | None = None) -> SpokenCase:
    """Speaks a talk whose ids arrive in pieces of these sizes, at once or after pauses."""
    case = case_of(engine, talk.name)
    options = UtteranceOptions(speaker=case.speaker, sampling=SAMPLED, seed=talk.seed, max_frames=talk.frames)
    answer = engine.open_answer(options, case.prompt)
    listening = asyncio.create_task(collect(answer.stream))
    start = 0
    for size in [*pieces, len(talk.answer)]:
        if start < len(talk.answer):
            answer.append_ids(talk.answer[start : start + size])
            start += size
            await asyncio.sleep(0 if pause is None else pause.choice((0, 0, 0.01, 0.03)))
    answer.append_ids([engine.text.tokens.ends[0]])  # type: ignore[union-attr]
    return joined(*await listening)


@cache
def drawn(engine: Engine, talk: Talk) -> SpokenCase:
    """The talk alone, with all of its ids at once."""
    return asyncio.run(draw(engine, talk, [len(talk.answer)]))


@pytest.mark.parametrize("name", ["beijing", "chat", "image"])
@pytest.mark.parametrize("waits", [False, True])
def test_ids_at_once_or_late_give_the_same_speech(engine: Engine, name: str, waits: bool) -> None:
    case = case_of(engine, name)
    spoken = asyncio.run(
        say(engine, case, [[], *([each] for each in case.spoken)], [False] + [waits] * len(case.spoken))
    )
    assert_identical(spoken, at_once(engine, name))


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 5), max_size=14), chance=st.integers(0, 99))
def test_any_times_of_the_ids_give_the_same_speech(engine: Engine, sizes: list[int], chance: int) -> None:
    """Four answers at once, 240 in all."""
    talks = [Talk(seed, name=("image", "chat")[seed % 2]) for seed in range(4)]

    async def together() -> list[SpokenCase]:
        return await asyncio.gather(*(draw(engine, talk, sizes, random.Random(chance + talk.seed)) for talk in talks))

    for talk, spoken in zip(talks, asyncio.run(together()), strict=True):
        assert_identical(spoken, drawn(engine, talk))


def test_a_step_that_begins_before_the_end_is_known_changes_nothing(engine: Engine, runner: TorchRunner) -> None:
    """A late device, as a card is: a row makes a frame more than it speaks."""
    talks = [Talk(seed, name=name) for seed, name in enumerate(("chat", "image", "image", "chat"))]
    alone = [drawn(engine, talk) for talk in talks]
    assert any(spoken.finished.reason == "stop" for spoken in alone)

    async def together(late: Engine) -> list[SpokenCase]:
        return await asyncio.gather(*(draw(late, talk, [2, 5, 7]) for talk in talks))

    with running(Engine(LateRunner(runner), runner.config)) as late:
        spoken = asyncio.run(together(late))
    for one, other in zip(alone, spoken, strict=True):
        assert_identical(other, one)


def test_neighbours_at_other_places_change_nothing(engine: Engine) -> None:
    talks = [Talk(seed, name=CASES[seed % len(CASES)], frames=8 + 3 * seed) for seed in range(7)]

    async def together() -> list[SpokenCase]:
        return await asyncio.gather(
            *(draw(engine, talk, [1] * (talk.seed % 4) + [3] * 9, random.Random(talk.seed)) for talk in talks)
        )

    for talk, spoken in zip(talks, asyncio.run(together()), strict=True):
        assert_identical(spoken, drawn(engine, talk))


def test_a_batch_that_fails_is_repeated_one_by_one_with_the_same_codes(
    engine: Engine, runner: TorchRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The codes that were drawn before the fault do not count for the repetition penalty."""
    talks = [Talk(seed) for seed in range(3)]
    alone = [drawn(engine, talk) for talk in talks]
    predict, broken = runner._predictor.forward, 0

    def breaking(hidden: Tensor, *rest: object) -> Tensor:
        nonlocal broken
        if len(hidden) > 1:
            broken += 1
            raise ValueError("this batch breaks")
        return predict(hidden, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(runner._predictor, "forward", breaking)

    async def together() -> list[SpokenCase]:
        return await asyncio.gather(*(draw(engine, talk, [14]) for talk in talks))

    for one, spoken in zip(alone, asyncio.run(together()), strict=True):
        assert_identical(spoken, one)
    assert broken


@pytest.mark.parametrize("name", ["audio", "image", "chat"])
@pytest.mark.parametrize("size", [1, 7, 16])
def test_a_prompt_in_pieces_gives_the_reference_state(runner: TorchRunner, name: str, size: int) -> None:
    assert isinstance(runner.text, AnswerFrontend)
    case = omni_case(name, runner.text)
    prompt = runner.text.prompt(case.options(), case.prompt)
    with torch.inference_mode():
        x = embed_prompt(prompt, runner._talker, runner._predictor)
        axes = axes_of(prompt, runner.device)
        places = torch.arange(x.shape[1]).expand(3, 1, -1) if axes is None else axes
        for start in range(0, x.shape[1], size):
            part = x[:, start : start + size]
            positions = places[:, :, start : start + size]
            runner._talker(part, RowView(runner._cache, [0], [start], part.shape[1], positions=positions))
        opening = torch.from_numpy(case.tensor("prefill"))[-1:]
        at = torch.full((3, 1, 1), x.shape[1] + prompt.shift)
        hidden = runner._talker(opening[None], RowView(runner._cache, [0], [x.shape[1]], 1, positions=at))
    torch.testing.assert_close(hidden[0], torch.from_numpy(case.tensor("hidden"))[:1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_answers_that_break_in_any_phase_cost_the_others_nothing(engine: Engine, seed: int) -> None:
    chance = random.Random(seed)
    survivors = [Talk(number, name=chance.choice(CASES)) for number in range(4)]
    alone = [drawn(engine, talk) for talk in survivors]

    async def breaks(number: int) -> None:
        case, breaker = case_of(engine, chance.choice(CASES)), random.Random(number)
        answer = engine.open_answer(case.options(), case.prompt)
        answer.append_ids(LONG_ANSWER[: breaker.randrange(len(LONG_ANSWER))])
        for _ in range(breaker.randrange(4)):
            await asyncio.sleep(0.01)
        if breaker.random() < 0.3:
            answer.end()
        if breaker.random() < 0.5:
            answer.stream.cancel()
            return
        answer.fail(SynthesisFailed("the thinker broke"))
        if answer.stream.finished is None:
            with contextlib.suppress(SynthesisFailed):
                await collect(answer.stream)

    async def together() -> list[SpokenCase]:
        survive = [draw(engine, talk, [1, 1, 2, 3], random.Random(talk.seed)) for talk in survivors]
        broken = asyncio.gather(*(breaks(number) for number in range(20)))
        spoken = await asyncio.gather(*survive)
        await broken
        return spoken

    for one, spoken in zip(alone, asyncio.run(together()), strict=True):
        assert_identical(spoken, one)
    wait_until(lambda: engine.stats().running == engine.stats().queued == 0)
    assert engine.ready


def state_of(runner: TorchRunner, row: int) -> list[Tensor]:
    """All that a row remembers."""
    tables = (
        runner._hidden,
        runner._code_0,
        runner._seed,
        runner._trailing,
        runner._trailing_count,
        runner._seen,
        runner._codes,
        runner._codec_rows._flat,
        runner._codec_rows._position,
    )
    caches = (runner._cache.k[:, row], runner._cache.v[:, row])
    return [table[row].clone() for table in tables] + [cache.clone() for cache in caches]


class Heard:
    """A loop driven by hand, and what its listeners hear."""

    def __init__(self, runner: TorchRunner) -> None:
        self._runner = runner
        self.events: dict[int, list[StreamEvent]] = {}
        self.loop = EngineLoop(runner, runner.config, Admission(runner.config, runner.info.frame_s), self._deliver)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for listener, event in deliveries:
            self.events.setdefault(listener.utterance_id, []).append(event)

    def open(self, number: int, talk: Talk) -> None:
        """Queues a talk of which no id has arrived."""
        text = self._runner.text
        assert isinstance(text, AnswerFrontend)
        case = omni_case(talk.name, text)
        options = UtteranceOptions(speaker=case.speaker, sampling=SAMPLED, seed=talk.seed, max_frames=talk.frames)
        trailing = TrailingText((), complete=False, text_tokens=0)
        prompt = text.prompt(options, case.prompt)
        pending = Pending(number, options, prompt, talk.seed, talk.frames, Listener(number), trailing)
        self.loop.apply([Submit(pending)])

    def append(self, number: int, ids: Sequence[int]) -> None:
        self.loop.apply([AppendText(number, tuple(ids), complete=False)])

    def end(self, number: int) -> None:
        self.loop.apply([AppendText(number, (self._runner.text.end_of_text_id,), complete=True)])

    def spoken(self, number: int) -> SpokenCase:
        *chunks, finished = self.events[number]
        assert isinstance(finished, Finished)
        return joined([chunk for chunk in chunks if isinstance(chunk, AudioChunk)], finished)


def test_a_row_that_waits_through_a_thousand_steps_of_its_neighbours_stays_as_it_is(
    engine: Engine, runner: TorchRunner
) -> None:
    waiting, beside = Talk(1), Talk(2, name="beijing", frames=24)
    expected, alone = drawn(engine, waiting), drawn(engine, beside)
    heard = Heard(runner)
    heard.open(1, waiting)
    heard.append(1, waiting.answer[:5])
    while heard.loop.step():
        pass
    assert sum(event.frames for event in heard.events[1] if isinstance(event, AudioChunk)) == 5
    (sequence,) = heard.loop._scheduler.running_sequences()
    counters = sequence.position, sequence.frames_made, sequence.frames_known, sequence.frames_sent
    before, number = state_of(runner, sequence.row), 1
    for _ in range(1000):
        if heard.loop.state().running == 1 and number < 4:
            number += 1
            heard.open(number, beside)
            heard.append(number, beside.answer)
            heard.end(number)
        heard.loop.step()
    assert all(map(torch.equal, state_of(runner, sequence.row), before))
    assert counters == (sequence.position, sequence.frames_made, sequence.frames_known, sequence.frames_sent)
    for each in range(2, number + 1):
        assert_identical(heard.spoken(each), alone)
    heard.append(1, waiting.answer[5:])
    heard.end(1)
    while heard.loop.step():
        pass
    assert_identical(heard.spoken(1), expected)


def test_a_cpu_speaks_answers_by_pytorch_and_says_so(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = EngineConfig(max_context=64, max_streams=1, device="cpu")
    made = make_runner("omni", read_checkpoint(checkpoint), config)
    assert isinstance(made, TorchRunner)
    assert "the torch runner on cpu: Vivavoce's kernels for CPUs have no mixture of experts" in caplog.text
    for named in ({"runner": "native"}, {"dtype": "int8"}):
        with pytest.raises(EngineError, match="have no mixture of experts"):
            make_runner("omni", read_checkpoint(checkpoint), replace(config, **named))  # type: ignore[arg-type]


def test_a_worker_warms_up_with_an_answer(runner: TorchRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Read(runner, monkeypatch)
    warm_up(runner, runner.config, Admission(runner.config, runner.info.frame_s))
    assert isinstance(runner.text, AnswerFrontend)
    tokens = runner.text.tokens
    assert read.texts[:2] == [tokens.newline, tokens.tts_eos]
    small = replace(runner.config, max_context=11)
    with pytest.raises(EngineError, match="no room for any speech"):
        warm_up(runner, small, Admission(small, runner.info.frame_s))
