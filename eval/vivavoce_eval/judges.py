"""Judges of speech besides the transcriber: DNSMOS, Resemblyzer's speaker embedding, pitch. All take 16 kHz."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivavoce_eval.extras import need
from vivavoce_eval.waves import JUDGE_RATE_HZ, Samples

Embedding = NDArray[np.float32]
DNSMOS_WINDOW_SAMPLES = int(9.01 * JUDGE_RATE_HZ)
DNSMOS_SILENCE_SAMPLES = int(0.15 * JUDGE_RATE_HZ)
"""Silence added before and after an utterance. Without it, the end of one repetition runs into the start of the next,
which costs 0.12 OVRL on the teacher's sentences. Lengths from 0.15 s to 0.5 s make no difference."""
F0_RANGE_HZ = (50.0, 500.0)
F0_WINDOW_SAMPLES = 1024
SPEAKER_S = 1.5
"""Least speech, in seconds, that identifies its speaker."""
SAME_SPEAKER_COSINE = 0.784
"""Cosine at Resemblyzer's equal error rate (1.1 %) over 29 voices of the shipped voice's teacher."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """DNSMOS: scores of ITU-T P.835 and P.808 predicted by a network, each from 1 to 5."""

    ovrl: float
    sig: float
    bak: float
    p808: float


def dnsmos(samples: Samples) -> Opinion:
    """Scores an utterance by DNSMOS.

    Speech shorter than DNSMOS's window is repeated, with pauses, to fill exactly one window. The package itself would
    repeat it without pauses, double it until it is longer, and judge up to eight windows of the same speech.
    """
    utterance = np.pad(samples, DNSMOS_SILENCE_SAMPLES)
    window = np.resize(utterance, max(len(utterance), DNSMOS_WINDOW_SAMPLES))
    found = need("speechmos.dnsmos").run(window, JUDGE_RATE_HZ)
    return Opinion(*(float(found[f"{name}_mos"]) for name in ("ovrl", "sig", "bak", "p808")))


@dataclass(frozen=True, slots=True)
class Pitch:
    """Pitch of an utterance. `median_hz` is over the voiced parts, or None if there are none."""

    median_hz: float | None
    voiced: float


def pitch(samples: Samples) -> Pitch:
    """Measures pitch by probabilistic YIN (Mauch and Dixon, 2014)."""
    low, high = F0_RANGE_HZ
    f0_hz, voiced, _ = need("librosa").pyin(
        samples, fmin=low, fmax=high, sr=JUDGE_RATE_HZ, frame_length=F0_WINDOW_SAMPLES
    )
    heard = f0_hz[voiced]
    return Pitch(float(np.median(heard)) if len(heard) else None, float(np.mean(voiced)))


class SpeakerEncoder:
    """Resemblyzer: the voice of an utterance as a vector of length 1 (GE2E, arXiv 1710.10467)."""

    def __init__(self) -> None:
        self._encoder = need("resemblyzer").VoiceEncoder("cpu", verbose=False)

    def embed(self, samples: Samples) -> Embedding | None:
        """Embeds samples [N] as [256]. Returns None if there is too little speech."""
        trimmed = need("librosa").effects.trim(samples, top_db=40)[0]
        if len(trimmed) < SPEAKER_S * JUDGE_RATE_HZ:
            return None
        return np.asarray(self._encoder.embed_utterance(trimmed), np.float32)
