"""One utterance before all judges → one row of figures."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vivavoce_eval.acoustics import listen
from vivavoce_eval.asr import word_errors
from vivavoce_eval.judges import Embedding, Opinion, Pitch, dnsmos, pitch
from vivavoce_eval.sentences import Sentence
from vivavoce_eval.waves import FRAME_SAMPLES, Samples, for_judges

FRAME_LIMIT = 300
"""Frames after which speech is cut off: 24 s, of which the longest sentence needs a third."""


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """A sentence as a speaker said it: samples at 24 kHz."""

    sentence: Sentence
    speaker: str
    samples: Samples

    @property
    def stopped(self) -> bool:
        """Whether the speech ended by itself, before the limit."""
        return len(self.samples) < FRAME_LIMIT * FRAME_SAMPLES


@dataclass(frozen=True, slots=True)
class Row:
    """What the judges say of one utterance. `truth` and `heard` are normalised; seconds, Hz, DNSMOS 1 to 5.

    `likeness` is the cosine to the reference's voice of this speaker, `likest` whose voice of the reference it is
    nearest to; None where there is no reference, or too little speech to tell.
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
    """Who writes down what was said: `Transcriber`."""

    def transcribe(self, samples: Samples) -> str: ...

    def normalise(self, text: str) -> str: ...


class VoiceRecogniser(Protocol):
    """Who tells voices apart: `SpeakerEncoder`."""

    def embed(self, samples: Samples) -> Embedding | None: ...


class Panel:
    """All judges. `reference` has the voices that speakers are expected to have, each of any length above 0."""

    def __init__(
        self, listener: SpeechRecogniser, recogniser: VoiceRecogniser, reference: dict[str, Embedding]
    ) -> None:
        self._listener = listener
        self._recogniser = recogniser
        self._reference = {name: voice / np.linalg.norm(voice) for name, voice in reference.items()}

    def judge(self, spoken: Spoken) -> tuple[Row, Embedding | None]:
        """→ the figures, and the speaker embedding where there is enough speech."""
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
        """→ whose voice of the reference this is most like, and its cosine to the speaker's own."""
        if embedding is None or speaker not in self._reference:
            return None, None
        cosines = {name: float(voice @ embedding) for name, voice in self._reference.items()}
        return max(cosines, key=cosines.__getitem__), cosines[speaker]
