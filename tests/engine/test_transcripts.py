"""The fit of a transcript and a recording: what the talker expects of known frames, with their text and without."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from vivavoce_engine import EngineConfig, RefTextMismatch, Rejected, Sampling, SamplingParams, SynthesisRequest
from vivavoce_engine import VoiceReference as Reference
from vivavoce_engine.checkpoint.files import Checkpoint, read_checkpoint
from vivavoce_engine.fake_runner import FAKE_FIT, FAKE_INFO, FakeEncoder, fake_voices
from vivavoce_engine.front.thread import Engine
from vivavoce_engine.load import ModelRunner, make_runner
from vivavoce_engine.request import SpokenContext, UtteranceOptions
from vivavoce_engine.text.prompt import Prompt, TextFrontend
from vivavoce_engine.text.transcript import LEAST_FIT, NO_FIT, TranscriptJudge
from vivavoce_engine.voices.registry import Voices
from vivavoce_engine.voices.store import StoredVoice, VoiceStore, read_voice
from vivavoce_voice import CHECKPOINT, held_out_sentences

from tests.engine.conftest import Checkpoints
from tests.support.recordings import voice_like, wav
from tests.support.speaking import running, speak

RUNNERS = ("native", "torch")
TOP = SamplingParams(temperature=0)
RECORDING = wav(voice_like(1, 1.2))
TOO_LONG = "la " * 100
Codes = NDArray[np.int16]
NO_EMBEDDING = np.zeros(1, np.float32)


def runner_of(checkpoint: Checkpoint, kind: str) -> ModelRunner:
    config = EngineConfig(device="cpu", dtype="float32", runner=kind, max_context=512, max_streams=4)  # type: ignore[arg-type]
    return make_runner("x", checkpoint, config)


def frontend(runner: ModelRunner) -> TextFrontend:
    assert isinstance(runner.text, TextFrontend)
    return runner.text


@pytest.fixture(scope="module")
def tiny(checkpoints: Checkpoints) -> Checkpoint:
    return read_checkpoint(checkpoints("tiny", "base"))


def request_of(checkpoint: Checkpoint) -> SynthesisRequest:
    embedding = np.full(checkpoint.talker.transformer.hidden_size, 0.1, np.float32)
    return SynthesisRequest("A quiet word.", reference=Reference(embedding), sampling=Sampling(TOP, TOP), max_frames=12)


def forced_prompt(runner: ModelRunner, request: SynthesisRequest, codes: Codes) -> Prompt:
    live = frontend(runner).live_text()
    ids = [*live.append(request.text), *live.close()]
    return frontend(runner).build(replace(request, context=SpokenContext("", codes)), ids, complete=True)


@pytest.mark.parametrize("kind", RUNNERS)
def test_the_code_that_is_expected_is_the_one_that_is_spoken(kind: str, tiny: Checkpoint) -> None:
    """Greedy speech takes the likeliest code of each frame, without a penalty for repeating one."""
    runner, request = runner_of(tiny, kind), request_of(tiny)
    with running(Engine(runner, runner.config)) as engine:
        codes = speak(engine, request)[0].codes
    assert len(codes) > 4
    expected = runner.forcing().log_probabilities(forced_prompt(runner, request, codes))
    assert expected.shape == (len(codes) + 1, tiny.talker.vocab_size)
    assert np.allclose(np.exp(expected).sum(axis=1), 1, atol=1e-5)
    speakable = expected[: len(codes), : tiny.talker.vocab_size - 1024]
    assert speakable.argmax(axis=1).tolist() == codes[:, 0].tolist()


def test_the_kernels_expect_what_the_modules_expect(tiny: Checkpoint) -> None:
    random = np.random.default_rng(1)
    codes = random.integers(0, tiny.talker.predictor_vocab_size, (150, tiny.talker.num_code_groups)).astype(np.int16)
    request = request_of(tiny)
    native, plain = (
        runner.forcing().log_probabilities(forced_prompt(runner, request, codes))
        for runner in (runner_of(tiny, kind) for kind in RUNNERS)
    )
    assert np.abs(native - plain).max() < 1e-4
    assert native.std() > 0.5


@pytest.mark.parametrize("kind", RUNNERS)
def test_texts_of_other_speech_do_not_fit(kind: str) -> None:
    checkpoint = read_checkpoint(CHECKPOINT)
    texts = [text for category, text in held_out_sentences() if category == "plain"][:6]
    runner = runner_of(checkpoint, kind)
    voice = UtteranceOptions(speaker="heart", language="english")
    with running(Engine(runner, runner.config)) as engine:
        requests = [voice.with_text(text) for text in texts]
        spoken = speak(
            engine, *(replace(each, seed=at, sampling=runner.info.sampling) for at, each in enumerate(requests))
        )
    judge = TranscriptJudge(frontend(runner), runner.forcing(), 512)
    for at, speech in enumerate(spoken):
        right, wrong = (
            judge.fit_of(voice, Reference(NO_EMBEDDING, speech.codes, text)) for text in (texts[at], texts[at - 1])
        )
        assert wrong < LEAST_FIT < right, texts[at]


def test_a_text_that_cannot_be_spoken_in_the_time_costs_nothing(tiny: Checkpoint) -> None:
    class Unused:
        def log_probabilities(self, prompt: Prompt) -> NDArray[np.float32]:
            raise AssertionError

    runner = runner_of(tiny, "torch")
    judge = TranscriptJudge(frontend(runner), Unused(), 512)
    codes = np.zeros((10, tiny.talker.num_code_groups), np.int16)
    reference = Reference(np.ones(tiny.talker.transformer.hidden_size, np.float32), codes, TOO_LONG)
    assert judge.fit(reference) == NO_FIT


def test_a_pair_that_is_longer_than_the_cache_is_refused(tiny: Checkpoint) -> None:
    runner = runner_of(tiny, "torch")
    judge = TranscriptJudge(frontend(runner), runner.forcing(), 64)
    codes = np.zeros((80, tiny.talker.num_code_groups), np.int16)
    reference = Reference(np.full(tiny.talker.transformer.hidden_size, 0.1, np.float32), codes, "Short.")
    with pytest.raises(Rejected, match="of 64 positions") as refusal:
        judge.fit(reference)
    assert refusal.value.param == "ref_text"


# ---- what becomes of it


class Counting(FakeEncoder):
    def __init__(self) -> None:
        self.encoded = self.judged = 0

    def encode(self, audio: NDArray[np.float32]) -> Reference:
        self.encoded += 1
        return super().encode(audio)

    def fit(self, reference: Reference) -> float | None:
        self.judged += 1
        return super().fit(reference)


def test_each_pair_is_judged_once_and_a_voice_without_text_never() -> None:
    encoder = Counting()
    voices = Voices(FAKE_INFO, encoder=encoder)
    for _ in range(2):
        assert voices.clone(RECORDING, "What is said.").text_fit == FAKE_FIT
        assert voices.clone(RECORDING, TOO_LONG).text_fit == NO_FIT
        assert voices.clone(RECORDING).text_fit is None
    assert (encoder.encoded, encoder.judged) == (1, 2)


def test_a_mismatch_is_refused_if_the_setting_says_so() -> None:
    voices = fake_voices(ref_text_check="refuse")
    assert voices.clone(RECORDING, "What is said.").text_fit == FAKE_FIT
    for _ in range(2):  # the second one is known
        with pytest.raises(
            RefTextMismatch, match=r"their fit is -10\.0, and that of a transcript at least 0\.65"
        ) as refusal:
            voices.clone(RECORDING, TOO_LONG)
        assert refusal.value.param == "ref_text"


def test_nobody_looks_if_the_setting_says_so() -> None:
    encoder = Counting()
    voices = Voices(FAKE_INFO, encoder=encoder, ref_text_check="off")
    assert voices.clone(RECORDING, TOO_LONG).text_fit is None
    assert (encoder.encoded, encoder.judged) == (1, 0)


def test_a_stored_voice_keeps_its_fit(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    voices = fake_voices(store)
    voices.add("good", "I agree.", RECORDING, "What is said.")
    voices.add("bad", "I agree.", RECORDING, TOO_LONG)
    voices.add("plain", "I agree.", [1.0] * 8)
    fits = [read_voice(tmp_path / f"{name}.safetensors").reference.text_fit for name in ("good", "bad", "plain")]
    assert fits == [FAKE_FIT, NO_FIT, None]
    assert isinstance(store.get("bad"), StoredVoice)


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValueError, match="ref_text_check must be refuse, flag or off, not 'on'"):
        EngineConfig(ref_text_check="on")  # type: ignore[arg-type]
