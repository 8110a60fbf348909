"""The silence before an utterance's first speech, dropped while the speech is made.

A voice begins with silence of its own: the shipped one with 90 to 100 ms, others with up to 0.7 s, different for each
seed. A listener would wait for it, so all but the last KEPT_S of it is dropped. Only the beginning of an utterance
is trimmed, and that of another voice's turn. Pauses that the text asks for stay, as does the silence between two parts
of a text.
"""

from collections.abc import AsyncIterator

import numpy as np
from vivavoce_engine import AudioChunk

from vivavoce_server.config import LeadingSilenceChoice
from vivavoce_server.effects import Samples

LEVEL = 10 ** (-55 / 20)
"""RMS of -55 dBFS, below which a window is silent. Vowels are about 35 dB louder, the softest consonants 5 to 15 dB."""
WINDOW_S = 0.02
"""Length of a window. A codec's frame of 80 ms holds whole windows, so no speech waits for the next frame."""
ONSET_S = 0.005
"""Length of the shorter windows that tell where the speech begins in two windows."""
KEPT_S = 0.02
"""Silence that stays before the speech. It also holds the part of a soft consonant that is under the level."""
LONGEST_S = 2.0
"""Longest silence that is dropped. Speech that stays under the level for so long is quiet as a whole."""


class LeadingSilence:
    """Drops the silence at the beginning of one utterance's samples.

    The result does not depend on how the samples are cut. Nothing is lost of an utterance that is silent altogether,
    or longer than LONGEST_S: it comes late, and whole.

    The first window is not judged: a codec's decoder begins from nothing, with a click. Speech that begins there goes
    on in the second window, before which the first one is kept.
    """

    def __init__(self, sample_rate: int, choice: LeadingSilenceChoice = "trim") -> None:
        """`sample_rate` is that of the samples, in Hz. With "keep", all samples pass."""
        self._sample_rate = sample_rate
        self._choice: LeadingSilenceChoice = choice
        self._onset_samples = round(ONSET_S * sample_rate)
        self._window_samples = round(WINDOW_S / ONSET_S) * self._onset_samples
        self._kept_samples = round(KEPT_S * sample_rate)
        self._most_windows = round(LONGEST_S / WINDOW_S)
        self._held: Samples | None = np.zeros(0, np.float32) if choice == "trim" else None
        """All samples so far. None once speech has begun."""
        self._judged = 1
        """Windows that are silent or not judged."""

    def again(self) -> "LeadingSilence":
        """The same for another beginning."""
        return LeadingSilence(self._sample_rate, self._choice)

    def feed(self, pcm: Samples) -> Samples:
        """Takes the next samples [n] float32, of any number. Returns those that the listener hears next, or none."""
        if self._held is None:
            return pcm
        self._held = held = np.concatenate([self._held, pcm])
        windows = min(len(held) // self._window_samples, self._most_windows)
        for window in range(self._judged, windows):
            start = window * self._window_samples
            if not _is_silent(held[start : start + self._window_samples]):
                self._held = None
                return held[max(0, self._onset(held, start) - self._kept_samples) :]
        self._judged = max(self._judged, windows)
        return self.flush() if windows == self._most_windows else held[:0]

    def flush(self) -> Samples:
        """Ends the trimming. Returns what is held back: an utterance without speech, as it is."""
        held, self._held = self._held, None
        return np.zeros(0, np.float32) if held is None else held

    async def trimmed(self, chunks: AsyncIterator[AudioChunk]) -> AsyncIterator[Samples]:
        """Yields the samples that the listener hears. If the first chunk is held back, an empty array comes first."""
        begun = False
        async for chunk in chunks:
            pcm = self.feed(chunk.pcm)
            if len(pcm) or not begun:
                yield pcm
            begun = True
        if len(pcm := self.flush()):
            yield pcm

    def _onset(self, held: Samples, loud_start: int) -> int:
        """First sample of the speech, which is in the window that begins at `loud_start`, or in the one before it."""
        size = self._onset_samples
        starts = range(loud_start - self._window_samples, loud_start + self._window_samples, size)
        return next(start for start in starts if not _is_silent(held[start : start + size]))


def _is_silent(samples: Samples) -> bool:
    """True under the level. Samples that are not numbers are a fault, which must not wait as silence does."""
    return bool(np.sqrt(np.mean(np.square(samples, dtype=np.float64))) < LEVEL)
