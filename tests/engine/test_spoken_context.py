"""An utterance continues earlier speech as if the two were one: the codes and audio are the same."""

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from vivavoce_bench.cards.layout import Kind, ShapeName
from vivavoce_engine import (
    Engine,
    EngineConfig,
    Overloaded,
    Rejected,
    Sampling,
    SamplingParams,
    SpokenContext,
    SynthesisRequest,
    UtteranceOptions,
    VoiceReference,
)
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner
from vivavoce_engine.text.prompt import NO_ID, TextFrontend, Tokenizer
from vivavoce_voice import CHECKPOINT

from tests.engine.conftest import Checkpoints
from tests.support.speaking import load, running, speak
from tests.support.stepping import stepping

FIRST, SECOND = "Hello, world! It rains.", " The quick brown fox jumps over the lazy dog."
FRAMES, GROUPS = 40, 16
WAVE_TOLERANCE = 1e-4
GREEDY = Sampling(SamplingParams(temperature=0, repetition_penalty=1.3), SamplingParams(temperature=0))
"""The penalty is high, so that a code that is forgotten makes a difference."""
RANDOM = np.random.default_rng(3)
EMBEDDING = RANDOM.normal(0, 0.05, 64).astype(np.float32)
RECORDING = RANDOM.integers(0, 2048, (7, GROUPS)).astype(np.int16)
VOICES: dict[str, tuple[Kind, SynthesisRequest]] = {
    "custom_voice": ("custom_voice", SynthesisRequest("", speaker="ryan", language="english")),
    "instructed": ("custom_voice", SynthesisRequest("", speaker="eric", instructions="calm and clear")),
    "voice_design": ("voice_design", SynthesisRequest("", language="english", instructions="an old man")),
    "x_vector": ("base", SynthesisRequest("", reference=VoiceReference(EMBEDDING))),
    "in_context": ("base", SynthesisRequest("", reference=VoiceReference(EMBEDDING, RECORDING, "What I say."))),
}
"""Every way to give a voice, without the text."""


@pytest.fixture(scope="module")
def endless(checkpoints: Checkpoints, tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Checkpoints whose speech does not end by itself."""

    @cache
    def endless_checkpoint(shape: ShapeName, kind: Kind) -> Path:
        path = shutil.copytree(checkpoints(shape, kind), tmp_path_factory.mktemp("endless") / kind)
        tensors = load_file(path / "model.safetensors")
        tensors["talker.codec_head.weight"][read_checkpoint(path).talker.codec_eos_token_id] = 0
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
        return path

    return endless_checkpoint


@pytest.mark.parametrize("streaming_text", [False, True])
@pytest.mark.parametrize("voice", VOICES)
def test_going_on_is_as_if_nobody_had_paused(voice: str, streaming_text: bool, endless: Checkpoints) -> None:
    """Greedily, at several places: before all text has been read, and after."""
    kind, request = VOICES[voice]
    request = replace(request, sampling=GREEDY, streaming_text=streaming_text, max_frames=FRAMES)
    with running(load(endless("tiny", kind), max_streams=4)) as engine:
        (whole,) = speak(engine, replace(request, text=FIRST + SECOND))
        assert len(whole.codes) == FRAMES
        cuts = (1, 5, 30)
        going_on = [
            replace(request, text=SECOND, context=SpokenContext(FIRST, whole.codes[:cut]), max_frames=FRAMES - cut)
            for cut in cuts
        ]
        for cut, rest in zip(cuts, speak(engine, *going_on), strict=True):
            assert np.array_equal(rest.codes, whole.codes[cut:]), cut
            assert np.abs(rest.pcm - whole.pcm[cut * engine.info.samples_per_frame :]).max() < WAVE_TOLERANCE, cut
            assert rest.finished.reason == whole.finished.reason
        other = speak(engine, replace(request, text=SECOND))[0]
        assert not np.array_equal(other.codes[: FRAMES - 5], whole.codes[5:]), "the context says nothing"


def test_the_prompt_is_that_of_one_text(checkpoints: Checkpoints) -> None:
    checkpoint = read_checkpoint(checkpoints("tiny", "custom_voice"))
    frontend = TextFrontend(checkpoint, Tokenizer(checkpoint.path))
    request = SynthesisRequest("", speaker="ryan", language="english")
    context = SpokenContext(FIRST, RECORDING)
    for streaming_text in (False, True):
        mode = replace(request, streaming_text=streaming_text)
        whole = frontend.prompt(replace(mode, text=FIRST + SECOND))
        prompt = frontend.prompt(replace(mode, text=SECOND, context=context))
        frames = len(RECORDING)
        if streaming_text:  # a text token beside each frame
            assert prompt.text_ids == whole.text_ids + whole.trailing_ids[:frames]
            assert prompt.trailing_ids == whole.trailing_ids[frames:] != ()
        else:
            assert prompt.text_ids == whole.text_ids + (checkpoint.tts_pad_token_id,) * frames
            assert prompt.trailing_ids == whole.trailing_ids == ()
        assert prompt.codec_ids == whole.codec_ids + (NO_ID,) * frames
        assert prompt.text_tokens == frontend.prompt(replace(mode, text=SECOND)).text_tokens
        assert prompt.conditioning is not None
        assert (prompt.conditioning.codes_at, prompt.conditioning.own_frames) == (whole.prefill_tokens, frames)
        assert prompt.conditioning.embedding is None


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (SpokenContext("Hi.", np.ones((5, 15), np.int16)), "frames have 16 codes"),
        (SpokenContext("Hi.", np.ones((0, GROUPS), np.int16)), "frames have 16 codes"),
        (SpokenContext("Hi.", np.full((5, GROUPS), 2048, np.int16)), "codes are below 2048"),
        (SpokenContext("Hi \ud83d.", RECORDING), "surrogate"),
    ],
)
def test_a_context_of_another_model_is_rejected(context: SpokenContext, message: str, checkpoints: Checkpoints) -> None:
    checkpoint = read_checkpoint(checkpoints("tiny", "custom_voice"))
    frontend = TextFrontend(checkpoint, Tokenizer(checkpoint.path))
    with pytest.raises(Rejected, match=message) as rejected:
        frontend.prompt(SynthesisRequest("Hello", speaker="ryan", context=context))
    assert rejected.value.param == "context"


def test_a_context_that_leaves_too_little_room_is_left_out(checkpoints: Checkpoints) -> None:
    request = SynthesisRequest("Hello", speaker="ryan", sampling=GREEDY, max_frames=8)
    long = replace(request, context=SpokenContext("Hi. ", np.tile(RECORDING, (10, 1))))
    with running(load(checkpoints("tiny", "custom_voice"), max_context=128)) as engine:
        alone, dropped = speak(engine, request, long)
    assert np.array_equal(alone.codes, dropped.codes)


@pytest.mark.parametrize(("most", "text"), [(None, "xyz"), (4, "xyz"), (5, " xyz")])
def test_a_model_gets_a_context_if_the_two_texts_are_not_too_long_for_it(most: int | None, text: str) -> None:
    """Without the context, its text begins without the blank."""
    info = replace(FAKE_INFO, max_utterance_chars=100, max_context_chars=most)
    says = SynthesisRequest(" xyz", speaker="heart", seed=1, context=SpokenContext("y", np.zeros((3, 1), np.int16)))
    with running(Engine(FakeRunner(info), EngineConfig())) as engine:
        (speech,) = speak(engine, says)
    assert speech.finished.text_tokens == len(text)


def test_the_shipped_voice_was_trained_on_short_texts() -> None:
    """In one go, 400 characters were understood at a word error rate of 81 %, in such parts at 2 %."""
    assert read_checkpoint(CHECKPOINT).max_utterance_chars == 180


async def test_what_goes_on_is_not_refused_and_is_next() -> None:
    """Its listener hears the part before it now."""
    says = SynthesisRequest("x" * 5, speaker="heart", seed=1)
    goes_on = replace(says, context=SpokenContext("y", np.zeros((3, 1), np.int16)), client="busy")
    with stepping(max_streams=1, max_queue=1) as (engine, steps):
        running_one = engine.submit(replace(says, client="busy"))
        steps.next()
        waiting = engine.submit(says)
        with pytest.raises(Overloaded):
            engine.submit(says)
        next_part = engine.submit(goes_on)
        steps.open()
        for stream in (running_one, next_part, waiting):
            assert sum([chunk.frames async for chunk in stream]) == 5
    order = [utterance_id for step in steps.taken for utterance_id in step.start]
    assert order == [stream.utterance_id for stream in (running_one, next_part, waiting)]


async def test_live_text_that_follows_is_not_refused_and_is_next() -> None:
    says = UtteranceOptions(speaker="heart", seed=1)
    with stepping(max_streams=1, max_queue=1) as (engine, steps):
        running_one = engine.submit(says.with_text("x" * 5))
        steps.next()
        waiting = engine.submit(says.with_text("x" * 5))
        refused, following = engine.open(says), engine.open(replace(says, follows=True))
        with pytest.raises(Overloaded):
            refused.append("x" * 5)
        following.append("x" * 5)
        following.end()
        steps.open()
        for stream in (running_one, following.stream, waiting):
            assert sum([chunk.frames async for chunk in stream]) == 5
    order = [utterance_id for step in steps.taken for utterance_id in step.start]
    assert order == [stream.utterance_id for stream in (running_one, following.stream, waiting)]


async def test_the_codes_are_known_before_they_are_read() -> None:
    with running(Engine(FakeRunner(), EngineConfig())) as engine:
        stream = engine.submit(SynthesisRequest("x" * 9, speaker="heart", seed=1))
        codes = await stream.all_codes()
        assert stream.finished is None
        assert np.array_equal(codes, np.arange(9)[:, None])
        assert np.array_equal(codes, np.concatenate([chunk.codes async for chunk in stream]))
