"""Normalisation and comparison of words, and the transcription that servers are offered."""

import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from vivavoce_engine.voices.recognizer import GROUP
from vivavoce_eval import asr
from vivavoce_eval.asr import ReferenceTranscriber, find_transcriber, same_words, word_errors
from vivavoce_eval.errors import Unusable


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("on the 14th of may", "on the 14 of may"),
        ("at 6:40 p m", "at 6 40 pm"),
        ("256 gb", "256 gigabytes"),
        ("by the sea shells", "by the seashells"),
        ("well, yes.", "well yes"),
        ("the ninth of may", "the 9 of may"),
    ],
)
def test_spellings_of_the_same_speech_are_equal(one: str, other: str) -> None:
    assert same_words(one) == same_words(other)


def test_other_words_stay_other_words() -> None:
    assert same_words("forty") != same_words("fourteen")
    assert same_words("$14 and £14") == "$14 and £14"


def test_substituted_missing_and_inserted_words_are_wrong() -> None:
    assert word_errors("a b c d", "a x c d") == (1, 4)
    assert word_errors("a b c d", "a c d") == (1, 4)
    assert word_errors("a b c d", "a b c d e") == (1, 4)
    assert word_errors("a b c d", "") == (4, 4)
    with pytest.raises(Unusable, match="without a word"):
        word_errors("", "a")


Samples = NDArray[np.float32]


class FakeWhisper:
    """Hears two segments in `language`, and counts those that are read."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.samples = self.read = 0

    def transcribe(self, samples: Samples, language: str | None, **options: Any) -> tuple[Any, Any]:
        assert (language, options["beam_size"], options["temperature"]) == (None, 1, 0.0)
        self.samples = len(samples)
        return self._segments(), SimpleNamespace(language=self.language)

    def _segments(self) -> Any:
        for text in (" One, two.", " Three."):
            self.read += 1
            yield SimpleNamespace(text=text)


@pytest.mark.parametrize(("language", "words", "read"), [("en", ["One,", "two.", "Three."], 2), ("de", None, 0)])
def test_a_server_is_told_the_words_of_english_alone(
    language: str, words: list[str] | None, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whisper = FakeWhisper(language)
    monkeypatch.setattr(asr, "whisper", lambda name, threads: whisper)
    heard = ReferenceTranscriber()(np.zeros(48_000, np.float32))
    assert (None if heard is None else heard.split()) == words
    assert (whisper.samples, whisper.read) == (32_000, read)


@pytest.mark.parametrize("missing", ["faster_whisper", asr.BASE_PARTS[1]])
def test_a_server_is_offered_nothing_if_a_package_is_missing(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asr, "find_spec", lambda package: None if package == missing else SimpleNamespace())
    assert find_transcriber() is None
    monkeypatch.setattr(asr, "find_spec", lambda package: SimpleNamespace())
    assert find_transcriber() is ReferenceTranscriber


def test_the_distribution_offers_it() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (entry,) = project["entry-points"][GROUP].values()
    module, _, name = entry.partition(":")
    assert getattr(import_module(module), name) is find_transcriber
