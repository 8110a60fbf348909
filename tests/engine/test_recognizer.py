"""A speech recognizer that is installed judges transcripts, and the talker those that it cannot."""

import logging
import threading
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from vivavoce_engine import EngineConfig, RefTextMismatch, VoiceReference
from vivavoce_engine.config import RefTextCheck
from vivavoce_engine.fake_runner import FAKE_FIT, FAKE_INFO, FakeEncoder, fake_voices
from vivavoce_engine.request import Hearing
from vivavoce_engine.text.transcript import MOST_WRONG, is_mismatch, mismatch_message, words_wrong
from vivavoce_engine.voices import recognizer as module
from vivavoce_engine.voices.recognizer import (
    GROUP,
    Loader,
    NoRecognizer,
    Recognizer,
    Transcribe,
    find_recognizer,
    recognizer_for,
)
from vivavoce_engine.voices.registry import Voices
from vivavoce_engine.voices.store import VoiceStore

from tests.support.recordings import voice_like, wav

RECORDING, OTHER_RECORDING = wav(voice_like(1, 1.2)), wav(voice_like(2, 1.2))
SAID = "The quick brown fox jumps over the lazy dog, and the cat sleeps."
HALF = "The quick brown fox jumps over"
BEHIND = f"{SAID} Tomorrow we shall all go to the sea and swim until the evening comes."
OTHER = "Nobody has ever told me why these old ships were never painted again."


class Ears:
    """A recognizer that hears `text` in every recording, and counts."""

    def __init__(self, text: str | None = SAID, fault: Exception | None = None) -> None:
        self.text, self.fault = text, fault
        self.loaded = 0
        self.heard: list[NDArray[np.float32]] = []
        self.threads: set[str] = set()

    def __call__(self, samples: NDArray[np.float32]) -> str | None:
        self.heard.append(samples)
        self.threads.add(threading.current_thread().name)
        if self.fault is not None:
            raise self.fault
        return self.text

    def load(self) -> Transcribe:
        self.loaded += 1
        return self

    def voices(self, check: RefTextCheck = "flag", store: VoiceStore | None = None) -> Voices:
        return fake_voices(store, ref_text_check=check, recognizer=Recognizer(lambda: self.load))


def wrong_of(reference: VoiceReference) -> float:
    assert reference.hearing is not None
    return reference.hearing.wrong


# ---- the words


@pytest.mark.parametrize(
    ("text", "heard", "wrong"),
    [
        (SAID, SAID, 0),
        (SAID, SAID.lower().replace(",", "").replace(".", ""), 0),
        ("Don't — really?", "don\u2019t really", 0),
        ("Room 14, at 6:40.", "room 14 at 6 40", 0),
        ("Room fourteen, at twenty to seven.", "Room 14 at 20 to 7.", 0),
        ("In two thousand and nineteen.", "In 2019.", 1 / 2),
        ("The twenty-first of May", "the 21st of May", 0),
        ("第十四个房间", "第14个房间", 0),
        ("1 2 3", "one two three", 0),
        ("1 2 3", "hello there", 1),
        ("a b c d", "a x c d", 1 / 4),
        ("a b c d", "a b c d e", 1 / 5),
        ("a b c d", "b c d", 1 / 4),
        ("a b", "b a", 1),
        ("a b c d", "a b", 1 / 2),
        ("a b", "a b c d", 1 / 2),
        ("a b", "c d", 1),
        ("...", "a b", 1),
        ("...", "", 0),
        ("今天天气很好。", "今天天气很好", 0),
        ("今天天气很好", "今天天气不好", 1 / 6),
        ("今天天气很好", "今天", 2 / 3),
        ("iPhone 15很好", "iphone 15 很坏", 1 / 3),
        ("きょうはいい", "きょうはわるい", 2 / 7),
        ("snake_case", "snake case", 0),
        ("\ufb01ne \uff37ords", "fine words", 0),
    ],
)
def test_the_share_of_wrong_words(text: str, heard: str, wrong: float) -> None:
    assert words_wrong(text, heard) == pytest.approx(wrong)
    assert words_wrong(heard, text) == pytest.approx(wrong)


def test_long_texts_are_compared_at_once() -> None:
    many = " ".join(["so", "it", "goes"] * 1000)
    assert words_wrong(many, many + " more") == pytest.approx(1 / 3001)


@pytest.mark.parametrize(
    ("text", "mismatch"),
    [
        (SAID, False),
        (SAID.upper(), False),
        (SAID.replace("lazy", "crazy"), False),
        (HALF, True),
        (BEHIND, True),
        (OTHER, True),
    ],
)
def test_a_text_that_is_not_what_is_heard_is_a_mismatch(text: str, mismatch: bool) -> None:
    reference = Ears().voices().clone(RECORDING, text)
    assert is_mismatch(reference) is mismatch
    assert (wrong_of(reference) > MOST_WRONG) is mismatch
    assert (reference.text, reference.text_fit) == (text, None)


def test_the_message_says_what_was_heard_and_where_it_is_cut() -> None:
    embedding = np.ones(8, np.float32)
    told = mismatch_message(VoiceReference(embedding, hearing=Hearing("It's " + "好" * 90, 0.625)))
    assert f'a speech recognizer hears "It\'s {"好" * 75} ...", where 62% of the words differ;' in told
    told = mismatch_message(VoiceReference(embedding, hearing=Hearing("", 0.5)))
    assert "in the recording: a speech recognizer found that 50% of the words differ;" in told


# ---- who judges


def test_a_recording_is_heard_once_on_the_thread_of_the_encoder_and_one_without_text_never() -> None:
    ears = Ears()
    voices = ears.voices()
    assert voices.clone(RECORDING).hearing is None
    assert (ears.loaded, ears.heard) == (0, [])
    for text in (SAID, OTHER, SAID):
        voices.clone(RECORDING, text)
    voices.clone(OTHER_RECORDING, SAID)
    assert (ears.loaded, len(ears.heard)) == (1, 2)
    assert [(samples.dtype.name, samples.ndim) for samples in ears.heard] == [("float32", 1)] * 2
    assert len(ears.heard[0]) > 24000  # a recording of 1.2 s
    assert {name.startswith("vivavoce-encoder") for name in ears.threads} == {True}


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_the_talker_judges_what_the_recognizer_cannot_tell(text: str | None) -> None:
    ears = Ears(text)
    voices = ears.voices()
    for _ in range(2):
        reference = voices.clone(RECORDING, SAID)
        assert (reference.hearing, reference.text_fit) == (None, FAKE_FIT)
    voices.clone(RECORDING, OTHER)
    assert len(ears.heard) == 1


def test_the_talker_judges_what_is_too_short_to_be_told_by_words() -> None:
    voices = Ears("Marvellous. Twenty one!").voices()
    assert voices.clone(RECORDING, "Marvelous 21").text_fit == FAKE_FIT
    assert wrong_of(voices.clone(RECORDING, "Marvellous things you say")) == 3 / 4


def test_the_talker_judges_where_the_recognizer_fails_and_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    ears = Ears(fault=RuntimeError("out of memory"))
    voices = ears.voices()
    with caplog.at_level(logging.INFO, module.__name__):
        for recording in (RECORDING, OTHER_RECORDING):
            assert voices.clone(recording, SAID).text_fit == FAKE_FIT
    assert len(ears.heard) == 2
    failed = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert [each.message for each in failed] == [
        "the speech recognizer failed; the talker judges ref_text in its place"
    ]
    ears.fault = None
    assert wrong_of(voices.clone(wav(voice_like(3, 1.2)), SAID)) == 0


def test_a_recognizer_that_cannot_be_loaded_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def broken() -> Transcribe:
        calls.append(1)
        raise OSError("no weights")

    voices = fake_voices(recognizer=Recognizer(lambda: broken))
    for recording in (RECORDING, OTHER_RECORDING):
        assert voices.clone(recording, SAID).text_fit == FAKE_FIT
    assert (len(calls), len(caplog.records)) == (1, 1)


def test_the_talker_judges_without_a_recognizer() -> None:
    for recognizer in (None, Recognizer(lambda: None)):
        reference = fake_voices(recognizer=recognizer).clone(RECORDING, OTHER)
        assert (reference.hearing, reference.text_fit) == (None, FAKE_FIT)


def test_the_talker_is_not_asked_what_the_recognizer_has_told() -> None:
    class Deaf(FakeEncoder):
        def fit(self, reference: VoiceReference) -> float | None:
            raise AssertionError

    voices = Voices(FAKE_INFO, encoder=Deaf(), recognizer=Recognizer(lambda: Ears().load))
    assert wrong_of(voices.clone(RECORDING, SAID)) == 0


# ---- what becomes of it


def test_a_mismatch_is_refused_if_the_setting_says_so() -> None:
    voices = Ears().voices("refuse")
    assert wrong_of(voices.clone(RECORDING, SAID)) == 0
    for _ in range(2):  # the second one is known
        with pytest.raises(RefTextMismatch, match=r"hears 'The quick brown .*sleeps\.', where 54% of the") as refusal:
            voices.clone(RECORDING, HALF)
        assert refusal.value.param == "ref_text"


def test_nobody_hears_if_the_setting_says_so() -> None:
    ears = Ears()
    reference = ears.voices("off").clone(RECORDING, OTHER)
    assert (reference.hearing, reference.text_fit, ears.loaded) == (None, None, 0)


def test_a_stored_voice_keeps_the_share_but_not_the_words(tmp_path: Path) -> None:
    voices = Ears().voices(store=VoiceStore(tmp_path))
    added = voices.add("bad", "I agree.", RECORDING, HALF)
    assert added.reference.hearing == Hearing(SAID, pytest.approx(7 / 13))  # type: ignore[arg-type]
    voices.add("good", "I agree.", RECORDING, SAID)
    later = fake_voices(VoiceStore(tmp_path))
    found = {name: later.resolve(name)[1] for name in ("good", "bad")}
    assert [None if each is None else each.hearing for each in found.values()] == [Hearing("", 0), Hearing("", 7 / 13)]
    with pytest.raises(RefTextMismatch, match="found that 54% of the words differ"):
        fake_voices(VoiceStore(tmp_path), ref_text_check="refuse").resolve("bad")
    unlooked = fake_voices(VoiceStore(tmp_path), ref_text_check="off").resolve("bad")[1]
    assert unlooked is not None
    assert unlooked.hearing is None


# ---- how one is found


def offers(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    entries = EntryPoints(EntryPoint(name, f"{__name__}:{name}", GROUP) for name in names)
    monkeypatch.setattr(module, "entry_points", lambda group: entries.select(group=group))


def offered() -> Loader:
    return Ears().load


def lacking() -> None:
    return None


def test_the_first_one_whose_packages_are_installed_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    offers(monkeypatch, "lacking", "absent", "offered")
    loader = find_recognizer()
    assert loader is not None
    assert loader()(np.zeros(24000, np.float32)) == SAID
    assert [f"{__name__}:absent cannot be used: AttributeError" in each.message for each in caplog.records] == [True]
    offers(monkeypatch, "lacking")
    assert find_recognizer() is None


@pytest.mark.parametrize(("names", "judge"), [((), "auto"), (("lacking",), "auto"), (("offered",), "talker")])
def test_none_is_used_where_none_is_installed_or_wanted(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], judge: str
) -> None:
    offers(monkeypatch, *names)
    voices = fake_voices(recognizer=recognizer_for(judge))  # type: ignore[arg-type]
    assert voices.clone(RECORDING, OTHER).text_fit == FAKE_FIT


@pytest.mark.parametrize("judge", ["auto", "asr"])
def test_one_that_is_installed_is_used(monkeypatch: pytest.MonkeyPatch, judge: str) -> None:
    offers(monkeypatch, "offered")
    voices = fake_voices(recognizer=recognizer_for(judge))  # type: ignore[arg-type]
    assert wrong_of(voices.clone(RECORDING, OTHER)) == 1


def test_one_that_is_asked_for_and_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    offers(monkeypatch, "lacking")
    with pytest.raises(NoRecognizer, match=r"^ref_text_judge asr needs .* pip install 'vivavoce-speech\[eval\]'"):
        recognizer_for("asr")


def test_an_unknown_judge_is_refused() -> None:
    with pytest.raises(ValueError, match="ref_text_judge must be auto, talker or asr, not 'whisper'"):
        EngineConfig(ref_text_judge="whisper")  # type: ignore[arg-type]
