"""Resolution of a client's names for voices, cloning that does not stall running speech, and refusals."""

import asyncio
import threading
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from vivavoce_bench.cards.layout import Kind
from vivavoce_engine import (
    Engine,
    EngineConfig,
    Overloaded,
    Rejected,
    SynthesisRequest,
    VoiceReference,
    Voices,
    VoiceStore,
    collect,
)
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.embeddings import EMBEDDING_MAX
from vivavoce_engine.fake_runner import EMBEDDING_SIZE, FAKE_INFO, FakeEncoder, FakeRunner, fake_voices
from vivavoce_engine.text.prompt import TextFrontend, Tokenizer
from vivavoce_engine.voices import registry as module

from tests.engine.conftest import Checkpoints
from tests.support.recordings import voice_like, wav
from tests.support.speaking import GREEDY, load, running, speak
from tests.support.waiting import HUNG_S, wait_until

RECORDING = wav(voice_like(1, 1.2))
CONSENT = "I am the speaker, and I agree."


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    return VoiceStore(tmp_path)


class CountingEncoder(FakeEncoder):
    """Counts; and stands still, once it has said so, until it may go on."""

    def __init__(self, stands: threading.Event | None = None, goes_on: threading.Event | None = None) -> None:
        self.calls = 0
        self.threads: set[str] = set()
        self._stands, self._goes_on = stands, goes_on

    def encode(self, audio: NDArray[np.float32]) -> VoiceReference:
        self.calls += 1
        self.threads.add(threading.current_thread().name)
        if self._stands is not None and self._goes_on is not None:
            self._stands.set()
            assert self._goes_on.wait(HUNG_S)
        return super().encode(audio)


# ---- names and mixes


def test_names_in_any_letter_case(store: VoiceStore) -> None:
    voices = fake_voices(store)
    voices.add("Anna", CONSENT, RECORDING, "said")
    assert voices.names() == ["heart", "michael", "anna"]
    assert voices.resolve("HEART") == ("heart", None)
    assert voices.resolve("alloy", {"alloy": "michael"}) == ("michael", None)
    speaker, reference = voices.resolve("aNNa")
    assert speaker == ""
    assert reference is not None
    assert reference.text == "said"
    assert reference.codes is not None
    speaker, reference = voices.resolve("anna", x_vector_only=True)
    assert reference is not None
    assert reference.codes is None


@pytest.mark.parametrize("mix", ["heart(2)+anna", "HEART(4)+Anna(2.0)", "alloy(2)+anna(1)"])
def test_mixes_of_presets_and_stored_voices(store: VoiceStore, mix: str) -> None:
    voices = fake_voices(store)
    voices.add("anna", CONSENT, [7.0] * EMBEDDING_SIZE)
    speaker, reference = voices.resolve(mix, {"alloy": "heart"})
    assert speaker == ""
    assert reference is not None
    assert np.allclose(reference.embedding, (2 * 1.0 + 7.0) / 3)  # heart's values are 1
    assert (reference.codes, reference.text) == (None, "")


def test_a_stored_voice_comes_before_an_alias(store: VoiceStore) -> None:
    voices = fake_voices(store)
    voices.add("alloy", CONSENT, [7.0] * EMBEDDING_SIZE)
    aliases = {"alloy": "heart"}
    assert voices.resolve("alloy", aliases)[0] == ""
    assert np.allclose(voices.blend("Alloy", aliases), 7.0)
    assert store.delete("alloy")
    assert voices.resolve("alloy", aliases) == ("heart", None)


def test_an_alias_may_stand_for_the_designed_voice() -> None:
    voices = Voices(replace(FAKE_INFO, task="voice_design", speakers=(), embedding_size=0, clones=False))
    assert voices.resolve("Alloy", {"alloy": ""}) == ("", None)
    with pytest.raises(Rejected, match="there are none"):
        voices.resolve("heart", {"alloy": ""})


def test_a_mix_of_one_is_the_voice_itself(store: VoiceStore) -> None:
    voices = fake_voices(store)
    assert voices.resolve("michael(3)") == ("michael", None)
    assert voices.resolve("alloy(0.5)", {"alloy": "heart"}) == ("heart", None)


def test_a_mix_can_be_stored_and_mixed_again(store: VoiceStore) -> None:
    voices = fake_voices(store)
    _, mixed = voices.resolve("heart+michael")
    voices.add("both", CONSENT, "heart+michael")
    _, stored = voices.resolve("both")
    assert mixed is not None
    assert stored is not None
    assert np.array_equal(stored.embedding, mixed.embedding)
    assert np.allclose(voices.blend("both(3)+heart"), (3 * 1.5 + 1) / 4)


@pytest.mark.parametrize(
    "voice", ["nobody", "heart+nobody", "nobody(2)", "", "heart+", "../anna", "heart(0)", "anna.x"]
)
def test_unknown_voices_are_never_another(store: VoiceStore, voice: str) -> None:
    with pytest.raises(Rejected) as refusal:
        fake_voices(store).resolve(voice)
    assert refusal.value.param == "speaker"


def test_an_unknown_voice_is_told_who_there_is(store: VoiceStore) -> None:
    voices = fake_voices(store)
    with pytest.raises(Rejected, match=r"there is no voice 'nobody'; there are heart, michael$"):
        voices.resolve("nobody")
    for number in range(30):
        voices.add(f"voice-{number}", CONSENT, [1.0] * EMBEDDING_SIZE)
    with pytest.raises(Rejected, match=r"heart, michael, voice-0, .* and 8 more$"):
        voices.resolve("nobody")


def test_a_voice_of_another_model_is_told_apart(store: VoiceStore) -> None:
    fake_voices(store).add("anna", CONSENT, [1.0] * EMBEDDING_SIZE)
    other = fake_voices(store, replace(FAKE_INFO, embedding_size=16))
    for voice in ("anna", "anna+heart"):
        with pytest.raises(Rejected, match="embeddings of 8; this one's have 16"):
            other.resolve(voice)


def test_a_model_that_does_not_clone_uses_the_embedding_of_a_stored_recording(store: VoiceStore) -> None:
    fake_voices(store).add("anna", CONSENT, RECORDING, "said")
    _, reference = fake_voices(store, replace(FAKE_INFO, clones=False)).resolve("anna")
    assert reference is not None
    assert reference.codes is None


# ---- cloning


def test_a_recording_is_encoded_once() -> None:
    encoder = CountingEncoder()
    voices = Voices(FAKE_INFO, encoder=encoder)
    first = voices.clone(RECORDING, "said")
    again = voices.clone(RECORDING, "said otherwise")
    alone = voices.clone(RECORDING)
    assert encoder.calls == 1
    assert encoder.threads == {"vivavoce-encoder_0"}
    assert first.embedding is again.embedding is alone.embedding
    assert first.codes is again.codes is not None
    assert (first.text, again.text, alone.text, alone.codes) == ("said", "said otherwise", "", None)
    voices.clone(wav(voice_like(2, 1.2)))
    assert encoder.calls == 2


def test_the_same_recording_from_many_clients_at_once_is_encoded_once() -> None:
    encoder = CountingEncoder()
    voices = Voices(FAKE_INFO, encoder=encoder)
    with ThreadPool(8) as clients:
        heard = clients.map(voices.clone, [RECORDING] * 8)
    assert encoder.calls == 1
    assert len({id(reference.embedding) for reference in heard}) == 1


def test_encoded_recordings_are_forgotten_beyond_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_BYTES", 100)
    encoder = CountingEncoder()
    voices = Voices(FAKE_INFO, encoder=encoder)
    files = [wav(voice_like(seed, 1.1)) for seed in range(3)]
    for file in [*files, *files]:
        voices.clone(file)
    assert encoder.calls == 6


async def test_encoding_stalls_no_running_stream(store: VoiceStore) -> None:
    """While the encoder stands still, another utterance is spoken to its end."""
    stands, goes_on = threading.Event(), threading.Event()
    encoder = CountingEncoder(stands, goes_on)
    engine = Engine(FakeRunner(), EngineConfig(), Voices(FAKE_INFO, encoder=encoder, store=store))
    with running(engine):
        cloning = asyncio.create_task(asyncio.to_thread(engine.voices.add, "anna", CONSENT, RECORDING, "said"))
        await asyncio.to_thread(stands.wait, HUNG_S)
        _, finished = await collect(engine.submit(SynthesisRequest("spoken meanwhile", speaker="heart")))
        assert finished.reason == "stop"
        assert not cloning.done()
        goes_on.set()
        assert (await cloning).name == "anna"


def test_too_many_waiting_recordings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    stands, goes_on = threading.Event(), threading.Event()
    voices = Voices(FAKE_INFO, encoder=CountingEncoder(stands, goes_on))
    files = [wav(voice_like(seed, 1.1)) for seed in range(3)]
    with ThreadPool(2) as clients:
        first = clients.apply_async(voices.clone, (files[0],))
        assert stands.wait(HUNG_S)
        waiting = clients.apply_async(voices.clone, (files[1],))
        wait_until(lambda: voices._waiting_recordings == 2)
        with pytest.raises(Overloaded, match="2 recordings are waiting") as refusal:
            voices.clone(files[2])
        assert refusal.value.retry_after_s > 0
        goes_on.set()
        assert first.get(HUNG_S).codes is None
        assert waiting.get(HUNG_S).codes is None
    assert voices.clone(files[2]).embedding.size == EMBEDDING_SIZE


def test_a_refused_recording_leaves_the_worker_at_work() -> None:
    voices = fake_voices()
    for _ in range(module.MAX_WAITING + 1):
        with pytest.raises(Rejected, match="is no audio file"):
            voices.clone(b"no audio")
    assert voices.clone(RECORDING).codes is None


# ---- bad input

ONES = [1.0] * EMBEDDING_SIZE
BAD_VOICES: list[tuple[str, str, str, object, str]] = [
    ("consent", "anna", "", RECORDING, "said"),
    ("consent", "anna", "  ", ONES, ""),
    ("consent", "anna", "half \ud83c", ONES, ""),
    ("ref_text", "anna", CONSENT, RECORDING, "half \ud83c"),
    ("name", "\ud83c", CONSENT, ONES, ""),
    ("speaker", "anna", CONSENT, "\ud83c", ""),
    ("name", "", CONSENT, ONES, ""),
    ("name", "heart", CONSENT, ONES, ""),
    ("name", "Heart ", CONSENT, ONES, ""),
    ("name", "../x", CONSENT, ONES, ""),
    ("name", "a+b", CONSENT, ONES, ""),
    ("name", "taken", CONSENT, ONES, ""),
    ("ref_text", "anna", CONSENT, ONES, "said"),
    ("ref_text", "anna", CONSENT, RECORDING, "x" * 5000),
    ("speaker", "anna", CONSENT, "heart+nobody", ""),
    ("speaker", "anna", CONSENT, "heart(", ""),
    ("ref_text", "anna", CONSENT, "heart+michael", "said"),
    ("reference", "anna", CONSENT, b"no audio", "said"),
    ("reference", "anna", CONSENT, b"", "said"),
    ("reference", "anna", CONSENT, wav(voice_like(1, 0.5)), "said"),
    ("reference", "anna", CONSENT, wav(np.zeros(48000)), "said"),
    ("reference", "anna", CONSENT, ONES[:-1], ""),
    ("reference", "anna", CONSENT, [*ONES, 1.0], ""),
    ("reference", "anna", CONSENT, [], ""),
    ("reference", "anna", CONSENT, [*ONES[:-1], float("nan")], ""),
    ("reference", "anna", CONSENT, [*ONES[:-1], float("-inf")], ""),
    ("reference", "anna", CONSENT, [ONES], ""),
    ("reference", "anna", CONSENT, ["a"] * EMBEDDING_SIZE, ""),
]


@pytest.mark.parametrize(("param", "name", "consent", "voice", "text"), BAD_VOICES)
def test_voices_that_cannot_be_stored(
    store: VoiceStore, param: str, name: str, consent: str, voice: object, text: str
) -> None:
    voices = fake_voices(store)
    voices.add("taken", CONSENT, ONES)
    with pytest.raises(Rejected) as refusal:
        voices.add(name, consent, voice, text)  # type: ignore[arg-type]
    assert refusal.value.param == param
    assert store.names() == ["taken"]


def test_what_a_model_or_server_lacks_is_said(store: VoiceStore) -> None:
    with pytest.raises(Rejected, match="a Base model does"):
        Voices(replace(FAKE_INFO, clones=False), store=store).clone(RECORDING)
    with pytest.raises(Rejected, match="stores no voices"):
        fake_voices().add("anna", CONSENT, ONES)
    with pytest.raises(Rejected, match="cannot be mixed"):
        Voices(FAKE_INFO).resolve("heart+michael")
    with pytest.raises(Rejected, match="takes none, not 8"):
        Voices(replace(FAKE_INFO, embedding_size=0)).direct(ONES)


HIDDEN, GROUPS = 64, 16
GOOD = VoiceReference(np.ones(HIDDEN, np.float32), np.ones((5, GROUPS), np.int16), "said")


def embedding(change: float) -> NDArray[np.float32]:
    return np.array([change] + [0.1] * (HIDDEN - 1), np.float32)


BAD_REFERENCES: list[tuple[Kind, VoiceReference, str]] = [
    ("base", VoiceReference(np.ones(HIDDEN - 1, np.float32)), "takes 64 values, not 63"),
    ("base", VoiceReference(np.ones((1, HIDDEN), np.float32)), "takes 64 values"),
    ("base", VoiceReference(embedding(float("nan"))), "values lie between"),
    ("base", VoiceReference(embedding(float("inf"))), "values lie between"),
    ("base", VoiceReference(embedding(-2 * EMBEDDING_MAX)), "values lie between"),
    ("base", replace(GOOD, text="half \ud83c"), "surrogate"),
    ("base", replace(GOOD, text=" "), "takes the text that is spoken in it"),
    ("base", replace(GOOD, codes=np.ones((5, 15), np.int16)), "frames have 16 codes"),
    ("base", replace(GOOD, codes=np.ones((0, GROUPS), np.int16)), "frames have 16 codes"),
    ("base", replace(GOOD, codes=np.ones(GROUPS, np.int16)), "frames have 16 codes"),
    ("base", replace(GOOD, codes=np.full((5, GROUPS), 2048, np.int16)), "codes are below 2048"),
    ("base", replace(GOOD, codes=np.full((5, GROUPS), -1, np.int16)), "codes are below 2048"),
    ("custom_voice", GOOD, "a Base model can"),
    ("voice_design", VoiceReference(GOOD.embedding), "a Base model clones"),
]


@pytest.mark.parametrize(("kind", "reference", "message"), BAD_REFERENCES)
def test_references_that_a_checkpoint_cannot_speak_with(
    kind: Kind, reference: VoiceReference, message: str, checkpoints: Checkpoints
) -> None:
    checkpoint = read_checkpoint(checkpoints("tiny", kind))
    frontend = TextFrontend(checkpoint, Tokenizer(checkpoint.path))
    with pytest.raises(Rejected) as refusal:
        frontend.prompt(SynthesisRequest("Hello.", reference=reference))
    assert refusal.value.param == "reference"
    assert message in str(refusal.value)


def test_a_voice_is_named_or_given_not_both_and_base_needs_one(checkpoints: Checkpoints) -> None:
    checkpoint = read_checkpoint(checkpoints("tiny", "base"))
    frontend = TextFrontend(checkpoint, Tokenizer(checkpoint.path))
    with pytest.raises(Rejected, match="not both"):
        frontend.prompt(SynthesisRequest("Hello.", speaker="ryan", reference=GOOD))
    with pytest.raises(Rejected, match="give it a voice to clone") as refusal:
        frontend.prompt(SynthesisRequest("Hello."))
    assert refusal.value.param == "speaker"


# ---- with real checkpoints


def test_a_preset_speaker_and_its_embedding_are_one_voice(checkpoints: Checkpoints, store: VoiceStore) -> None:
    """So a mix lies between its speakers, and mixes and stored voices speak on checkpoints that do not clone."""
    with running(load(checkpoints("tiny", "custom_voice"))) as engine:
        assert (engine.info.embedding_size, engine.info.clones) == (HIDDEN, False)
        named = SynthesisRequest("Hello, world!", speaker="ryan", language="english", sampling=GREEDY, max_frames=8)
        given = replace(named, speaker="", reference=VoiceReference(engine.voices.embedding("Ryan")))
        _, mix = engine.voices.resolve("ryan(1)+serena(1)")
        mixed = replace(given, reference=mix)
        by_name, by_example, by_mix = speak(engine, named, given, mixed)
    assert np.array_equal(by_name.codes, by_example.codes)
    assert np.abs(by_name.pcm - by_example.pcm).max() < 1e-5
    assert not np.array_equal(by_name.codes, by_mix.codes)


def test_a_stored_clone_speaks_as_the_recording_itself(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """In this process, and in one that starts later."""
    path = checkpoints("tiny_noproj", "base")
    request = SynthesisRequest("Hello", sampling=GREEDY, max_frames=6, streaming_text=True)
    voices_of = [load(path).voices for _ in range(2)]
    for voices in voices_of:
        voices.store = VoiceStore(tmp_path)
    recorded = voices_of[0].clone(RECORDING, "The lazy dog")
    voices_of[0].add("anna", CONSENT, RECORDING, "The lazy dog")
    _, stored = voices_of[1].resolve("Anna")
    with running(load(path)) as engine:
        said = speak(engine, replace(request, reference=recorded), replace(request, reference=stored))
    assert np.array_equal(said[0].codes, said[1].codes)
    assert np.abs(said[0].pcm - said[1].pcm).max() < 1e-5
