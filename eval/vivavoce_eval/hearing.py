"""The panel of judges, which turns an utterance into a row of figures."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vivavoce_eval.acoustics import listen
from vivavoce_eval.asr import word_errors
from vivavoce_eval.judges import Embedding, Opinion, Pitch, dnsmos, pitch
from vivavoce_eval.sentences import Sentence
from vivavoce_eval.waves import FRAME_SAMPLES, Samples, for_judges

FRAME_LIMIT, FRAMES_PER_CHARACTER = 300, 2
"""Frames after which speech is cut off: 24 s, or 160 ms a character. Speech needs a third of that."""


def frame_limit(text: str) -> int:
    """Frames after which the speech of a text is cut off."""
    return max(FRAME_LIMIT, FRAMES_PER_CHARACTER * len(text))


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """A sentence as spoken by a speaker: samples at 24 kHz."""

    sentence: Sentence
    speaker: str
    samples: Samples

    @property
    def stopped(self) -> bool:
        """True if the speech ended by itself, before the limit."""
        return len(self.samples) < frame_limit(self.sentence.text) * FRAME_SAMPLES


@dataclass(frozen=True, slots=True)
class Row:
    """The judges' figures of one utterance: times in s, pitch in Hz, DNSMOS from 1 to 5.

    `truth` and `heard` are normalised texts. `likeness` is the cosine to the reference's voice of this speaker, and
    `likest` the speaker whose reference voice is nearest. Both are None without a reference or with too little speech.
    """

    number: int
    category: str
    speaker: str
    text: str
    truth: str
    heard: str
    wrong_words: int
    words: int
    stopped: bool
    duration_s: float
    leading_silence_s: float
    trailing_silence_s: float
    longest_pause_s: float
    clipped: float
    click: float
    seam_click: float
    f0_hz: float | None
    voiced: float
    ovrl: float
    sig: float
    bak: float
    p808: float
    likest: str | None = None
    likeness: float | None = None


class SpeechRecogniser(Protocol):
    """Interface of the judge that transcribes speech: `Transcriber`."""

    def transcribe(self, samples: Samples) -> str: ...

    def normalise(self, text: str) -> str: ...


class VoiceRecogniser(Protocol):
    """Interface of the judge that tells voices apart: `SpeakerEncoder`."""

    def embed(self, samples: Samples) -> Embedding | None: ...


class Panel:
    """All judges. `reference` holds the expected voice of each speaker, an embedding of any length above 0."""

    def __init__(
        self, listener: SpeechRecogniser, recogniser: VoiceRecogniser, reference: dict[str, Embedding]
    ) -> None:
        self._listener = listener
        self._recogniser = recogniser
        self._reference = {name: voice / np.linalg.norm(voice) for name, voice in reference.items()}

    def judge(self, spoken: Spoken) -> tuple[Row, Embedding | None]:
        """Returns the figures of an utterance, and its speaker embedding if there is enough speech."""
        samples, sentence = for_judges(spoken.samples), spoken.sentence
        acoustics = listen(spoken.samples)
        truth = self._listener.normalise(sentence.text)
        heard = self._listener.normalise(self._listener.transcribe(samples))
        wrong, words = word_errors(truth, heard)
        opinion, tone, embedding = self._opinions(samples)
        likest, likeness = self.likest(spoken.speaker, embedding)
        row = Row(
            sentence.number,
            sentence.category,
            spoken.speaker,
            sentence.text,
            truth,
            heard,
            wrong,
            words,
            spoken.stopped,
            acoustics.duration_s,
            acoustics.leading_silence_s,
            acoustics.trailing_silence_s,
            acoustics.longest_pause_s,
            acoustics.clipped,
            acoustics.click,
            acoustics.seam_click,
            tone.median_hz,
            tone.voiced,
            opinion.ovrl,
            opinion.sig,
            opinion.bak,
            opinion.p808,
            likest,
            likeness,
        )
        return row, embedding

    def _opinions(self, samples: Samples) -> tuple[Opinion, Pitch, Embedding | None]:
        return dnsmos(samples), pitch(samples), self._recogniser.embed(samples)

    def likest(self, speaker: str, embedding: Embedding | None) -> tuple[str | None, float | None]:
        """Returns the speaker whose reference voice is nearest, and the cosine to the speaker's own."""
        if embedding is None or speaker not in self._reference:
            return None, None
        cosines = {name: float(voice @ embedding) for name, voice in self._reference.items()}
        return max(cosines, key=cosines.__getitem__), cosines[speaker]
