"""Answers: ids that arrive one by one, and speech that waits for them, on the fake engine and on a late device."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from vivavoce_engine import (
    AudioChunk,
    Engine,
    EngineConfig,
    Finished,
    NotServing,
    Rejected,
    SpokenAnswer,
    SpokenContext,
    SynthesisFailed,
    SynthesisRequest,
    ThinkerMedia,
    ThinkerPrompt,
    UtteranceOptions,
    VoiceReference,
    collect,
)
from vivavoce_engine.batching.runner import Runner
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.batching.sequence import Sequence as Row
from vivavoce_engine.fake_runner import EMBEDDING_SIZE, FAKE_ANSWERS, FAKE_CHAT_INFO, FakeRunner, tone

from tests.support.speaking import running
from tests.support.stepping import LateRunner, WatchedRunner
from tests.support.waiting import wait_until

T = FAKE_ANSWERS.tokens
END, OTHER_END = T.ends
ASK = (T.im_start, T.assistant, T.newline)


def turn(role: int, text: str) -> tuple[int, ...]:
    return (T.im_start, role, T.newline, *map(ord, text))


PROMPT = ThinkerPrompt((*turn(T.user, "Where?"), *ASK))


class EarlyEnd(FakeRunner):
    """Ends every speech in place of frame `frames`, whatever its text."""

    def __init__(self, frames: int) -> None:
        super().__init__(FAKE_CHAT_INFO)
        self._frames = frames

    def _ends(self, sequence: Row) -> bool:
        return sequence.frames_made >= self._frames


class Texts:
    """The text ids of each row, as they are when a step begins."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, plan: Plan) -> None:
        for sequence in plan.step:
            self.seen = list(sequence.trailing.ids)


@pytest.fixture(params=["host", "device"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    runner: Runner = FakeRunner(FAKE_CHAT_INFO)
    if request.param == "device":
        runner = LateRunner(runner)
    with running(Engine(runner, EngineConfig(max_streams=2))) as engine:
        yield engine


def options(seed: int = 0, max_frames: int | None = None) -> UtteranceOptions:
    return UtteranceOptions(speaker="heart", seed=seed, max_frames=max_frames)


async def pieces(answer: SpokenAnswer, frames: int) -> list[AudioChunk]:
    """The pieces up to so many frames."""
    found: list[AudioChunk] = []
    while sum(chunk.frames for chunk in found) < frames:
        found.append(await anext(answer.stream))
    return found


async def frames_of(answer: SpokenAnswer) -> int:
    return sum([chunk.frames async for chunk in answer.stream])


def assert_tone(chunks: Sequence[AudioChunk], seed: int, frames: int) -> None:
    assert np.array_equal(np.concatenate([chunk.pcm for chunk in chunks]), tone(seed, 0, frames))


async def test_each_id_lets_one_frame_be_made_and_the_first_needs_no_second(engine: Engine) -> None:
    answer = engine.open_answer(options(seed=3), PROMPT)
    chunks: list[AudioChunk] = []
    for number, letter in enumerate("Beijing", start=1):
        answer.append_ids([ord(letter)])
        chunks += await pieces(answer, number - sum(chunk.frames for chunk in chunks))
        assert sum(chunk.frames for chunk in chunks) == number
    await asyncio.sleep(0.05)
    assert engine.stats().frames == 7, "nothing is made while no id is there"
    answer.append_ids([END])
    assert [chunk async for chunk in answer.stream] == []
    assert answer.stream.finished == Finished(text_tokens=7, frames=7, reason="stop")
    assert_tone(chunks, 3, 7)


async def test_the_prompt_runs_before_the_first_id_is_there(engine: Engine) -> None:
    answer = engine.open_answer(options(), PROMPT)
    await asyncio.to_thread(wait_until, lambda: engine.stats().steps == 1)
    assert (engine.stats().running, engine.stats().frames) == (1, 0)
    answer.append_ids([ord("a"), END])
    chunks, _ = await collect(answer.stream)
    assert_tone(chunks, 0, 1)


@pytest.mark.parametrize("sizes", [[300], [10, 100, 100, 100]])
async def test_ids_behind_the_longest_speech_are_left_out(sizes: list[int]) -> None:
    texts, room = Texts(), 64 - FAKE_ANSWERS.prompt(options(), PROMPT).prefill_tokens
    config = EngineConfig(max_context=64, kv_positions=64)
    with running(Engine(WatchedRunner(FakeRunner(FAKE_CHAT_INFO), texts), config)) as engine:
        answer = engine.open_answer(options(), PROMPT)
        for size in sizes:
            answer.append_ids([ord("a")] * size)
        answer.end()
        _, finished = await collect(answer.stream)
    assert (finished.frames, finished.reason) == (room, "length")
    assert texts.seen[:room] == [ord("a")] * room
    assert len(texts.seen) <= room + 1


@pytest.mark.parametrize("tokens", [1, 2, 3, 20])
@pytest.mark.parametrize("end", ["apart", "same", "other", "limit", "twice"])
async def test_an_answer_ends_once_however_it_ends(tokens: int, end: str) -> None:
    texts = Texts()
    with running(Engine(WatchedRunner(FakeRunner(FAKE_CHAT_INFO), texts), EngineConfig())) as engine:
        answer = engine.open_answer(options(), PROMPT)
        spoken = [ord("a") + number for number in range(tokens)]
        answer.append_ids(spoken if end != "same" else [*spoken, END])
        if end in ("apart", "other", "twice"):
            answer.append_ids([OTHER_END if end == "other" else END])
        if end in ("limit", "twice"):
            answer.end()
        assert answer.ended
        chunks, finished = await collect(answer.stream)
        with pytest.raises(AssertionError, match="has ended"):
            answer.append_ids([ord("z")])
    assert texts.seen == [*spoken, T.tts_eos]
    assert finished == Finished(text_tokens=tokens, frames=tokens, reason="stop")
    assert_tone(chunks, 0, tokens)


@pytest.mark.parametrize("ids", [[END], []])
async def test_an_answer_of_nothing_is_no_speech_and_no_error(engine: Engine, ids: list[int]) -> None:
    answer = engine.open_answer(options(), PROMPT)
    answer.append_ids(ids)
    answer.end()
    chunks, finished = await collect(answer.stream)
    assert (chunks, finished) == ([], Finished(text_tokens=0, frames=0, reason="stop"))
    assert len(await answer.stream.all_codes()) == 0
    await idle(engine)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("frames", [0, 1, 3])
async def test_speech_may_end_before_its_text_which_goes_on(frames: int, late: bool) -> None:
    runner: Runner = EarlyEnd(frames)
    with running(Engine(LateRunner(runner) if late else runner, EngineConfig())) as engine:
        answer = engine.open_answer(options(), PROMPT)
        answer.append_ids(list(map(ord, "Beijing it")))
        chunks, finished = await collect(answer.stream)
        assert finished == Finished(text_tokens=10, frames=frames, reason="stop")
        assert sum(chunk.frames for chunk in chunks) == frames
        answer.append_ids([ord(" ")])
        answer.append_ids([END])
        await idle(engine)
        assert engine.ready


async def idle(engine: Engine) -> None:
    """Waits until no row is in use."""
    await asyncio.to_thread(wait_until, lambda: engine.stats().running == engine.stats().queued == 0)


@pytest.mark.parametrize("how", ["fail", "cancel"])
@pytest.mark.parametrize("phase", ["queued", "prompt", "waiting", "running", "ended"])
async def test_an_answer_that_breaks_frees_its_row_and_keeps_what_was_spoken(
    engine: Engine, how: str, phase: str
) -> None:
    beside = engine.open_answer(options(seed=9), PROMPT)
    beside.append_ids([ord("a")] * 8)
    if phase == "queued":
        others = [engine.open_answer(options(), PROMPT) for _ in range(2)]
    answer = engine.open_answer(options(seed=1), PROMPT)
    heard = 0
    if phase not in ("queued", "prompt"):
        answer.append_ids([ord("x")] * (500 if phase == "running" else 3))
        heard = sum(chunk.frames for chunk in await pieces(answer, 1 if phase == "running" else 3))
    if phase == "ended":
        answer.append_ids([ord("y")] * 500)
        answer.end()
    if how == "fail":
        answer.fail(SynthesisFailed("the thinker has stalled"))
        with pytest.raises(SynthesisFailed, match="stalled"):
            heard += await frames_of(answer)
    else:
        answer.stream.cancel()
        assert answer.stream.finished is None
    assert heard >= {"queued": 0, "prompt": 0, "running": 1}.get(phase, 3)
    if phase == "queued":
        for other in others:
            other.stream.cancel()
    beside.append_ids([END])
    chunks, finished = await collect(beside.stream)
    assert_tone(chunks, 9, finished.frames)
    assert finished.frames == 8
    await idle(engine)


async def test_a_failure_after_the_end_of_the_speech_is_none(engine: Engine) -> None:
    answer = engine.open_answer(options(), PROMPT)
    answer.append_ids([ord("a"), END])
    await collect(answer.stream)
    answer.fail(SynthesisFailed("too late"))
    assert [chunk async for chunk in answer.stream] == []


async def test_the_limit_of_frames_ends_the_speech_while_the_text_goes_on(engine: Engine) -> None:
    answer = engine.open_answer(options(max_frames=3), PROMPT)
    answer.append_ids(list(map(ord, "Beijing")))
    _, finished = await collect(answer.stream)
    assert finished == Finished(text_tokens=7, frames=3, reason="length")


async def test_answers_at_different_places_share_steps(engine: Engine) -> None:
    async def one(seed: int) -> None:
        answer = engine.open_answer(options(seed=seed), PROMPT)
        for _ in range(seed):
            answer.append_ids([ord("a")])
            await asyncio.sleep(0)
        answer.end()
        chunks, finished = await collect(answer.stream)
        assert finished.frames == seed
        assert_tone(chunks, seed, seed)

    await asyncio.gather(*(one(seed) for seed in range(1, 12)))
    await idle(engine)


@pytest.mark.parametrize("ids", [[T.vocab_size], [-1], [END, ord("a")], [ord("a"), END, END]])
async def test_ids_that_are_no_answer_are_refused_and_cost_nothing(engine: Engine, ids: list[int]) -> None:
    answer = engine.open_answer(options(), PROMPT)
    with pytest.raises(Rejected) as refusal:
        answer.append_ids(ids)
    assert refusal.value.param == "answer"
    answer.append_ids([ord("a"), END])
    _, finished = await collect(answer.stream)
    assert finished.text_tokens == 1


VECTORS = np.zeros((2, EMBEDDING_SIZE), np.float32)


@pytest.mark.parametrize(
    ("ids", "media", "message"),
    [
        ((), None, "must end with"),
        (turn(T.user, "Where?"), None, "must end with"),
        ((*ASK, *turn(T.user, "Where?")), None, "must end with"),
        ((*turn(T.user, "a"), T.vocab_size, *ASK), None, "token ids are from 0"),
        ((*turn(T.user, "a"), *ASK, ord("a"), END), None, "ended already"),
        ((*turn(T.user, "a"), T.audio, *ASK), None, "came with vectors"),
        ((*turn(T.user, "a"), T.video, *ASK), None, "video"),
        ((*turn(T.user, "a"), T.audio, *ASK), ThinkerMedia(np.array([4]), VECTORS), "vectors of sound"),
        (
            (*turn(T.user, ""), T.vision_start, T.image, T.image, *ASK),
            ThinkerMedia(np.array([4, 5]), VECTORS),
            "1 pictures, not 0",
        ),
        (
            (*turn(T.user, ""), T.vision_start, T.image, T.image, *ASK),
            ThinkerMedia(np.array([4, 5]), VECTORS, ((2, 2),)),
            "2 x 2 tokens has 2",
        ),
    ],
)
async def test_prompts_that_cannot_be_spoken_are_refused(
    engine: Engine, ids: tuple[int, ...], media: ThinkerMedia | None, message: str
) -> None:
    with pytest.raises(Rejected, match=message) as refusal:
        engine.open_answer(options(), ThinkerPrompt(ids, media))
    assert refusal.value.param == "prompt"


def test_the_talker_reads_the_users_turns_and_what_the_answer_begins_with() -> None:
    ids = (
        *turn(T.assistant, "lost"),
        *turn(T.user, "ab"),
        *turn(T.assistant, "earlier"),
        *turn(T.user, ""),
        T.vision_start,
        T.image,
        T.image,
        *ASK,
        ord("H"),
    )
    media = ThinkerMedia(np.flatnonzero(np.array(ids) == T.image), VECTORS, ((1, 2),))
    prompt = FAKE_ANSWERS.prompt(options(), ThinkerPrompt(ids, media))
    pad = [T.tts_pad] * 4
    user = [T.im_start, T.user, T.newline]
    assert list(prompt.text_ids) == [*user, *map(ord, "ab"), *user, T.vision_start, -1, -1, *ASK, *pad, T.tts_bos]
    assert list(prompt.codec_ids) == [-1] * 14 + [0, 1, 2, 5, 3]
    assert (prompt.opening_codec_id, prompt.trailing_ids, prompt.text_tokens) == (4, (ord("H"),), 1)
    assert prompt.media is not None
    assert prompt.axes is not None
    assert prompt.media.at.tolist() == [9, 10]
    assert prompt.axes.tolist() == [
        [*range(9), 9, 9, *range(11, 19)],
        [*range(9), 9, 9, *range(11, 19)],
        [*range(9), 9, 10, *range(11, 19)],
    ]
    assert prompt.shift == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("speaker", "nobody"),
        ("language", "english"),
        ("instructions", "sadly"),
        ("end_after_text", True),
        ("word_times", True),
        ("reference", VoiceReference(np.zeros(EMBEDDING_SIZE, np.float32))),
        ("context", SpokenContext("Hello.", np.zeros((2, 1), np.int16))),
    ],
)
async def test_options_that_this_model_has_not_are_refused_by_name(engine: Engine, field: str, value: object) -> None:
    with pytest.raises(Rejected) as refusal:
        engine.open_answer(replace(options(), **{field: value}), PROMPT)  # type: ignore[arg-type]
    assert refusal.value.param == field


async def test_a_model_speaks_texts_or_answers_never_both(engine: Engine) -> None:
    for ask in (
        lambda: engine.submit(SynthesisRequest("Hello.", speaker="heart")),
        lambda: engine.open(options()),
    ):
        with pytest.raises(Rejected, match="its own thinker"):
            ask()
    with running(Engine(FakeRunner(), EngineConfig())) as other, pytest.raises(Rejected, match="no thinker"):
        other.open_answer(options(), PROMPT)


async def test_an_engine_that_has_stopped_takes_no_answer() -> None:
    engine = Engine(FakeRunner(FAKE_CHAT_INFO), EngineConfig())
    with pytest.raises(NotServing):
        engine.open_answer(options(), PROMPT)
