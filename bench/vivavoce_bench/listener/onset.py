"""The search for the first audible sample of an answer, while its pieces arrive."""

import array
import sys
from operator import mul

from vivavoce_client.protocol import SAMPLE_BYTES, SAMPLE_RATE

HOP_SAMPLES = SAMPLE_RATE // 100
"""Samples in 10 ms. A window is two hops."""
HOP_BYTES = HOP_SAMPLES * SAMPLE_BYTES
AUDIBLE_RMS = 32768 * 10 ** (-45 / 20)
"""RMS of -45 dBFS, which two consecutive windows must reach."""
AUDIBLE_WINDOWS = 2


class Onset:
    """Finds the sample at which lasting sound begins in 16-bit little-endian PCM.

    It is the start of the first of two consecutive windows whose RMS about the mean is at least -45 dBFS. Windows are
    20 ms long and 10 ms apart, so the first loud sample lies within the first of the two. Holds less than a hop of
    audio.
    """

    def __init__(self) -> None:
        self.sample: int | None = None
        """The sample, once it is found."""
        self._rest = b""
        self._hops = 0
        self._loud = 0
        self._last = (0, 0)

    def add(self, pcm: bytes) -> None:
        """Takes the next piece of audio, of any length."""
        if self.sample is not None:
            return
        pcm = self._rest + pcm
        used = 0
        while self.sample is None and used + HOP_BYTES <= len(pcm):
            self._add_hop(pcm[used : used + HOP_BYTES])
            used += HOP_BYTES
        self._rest = pcm[used:]

    def _add_hop(self, hop: bytes) -> None:
        total, squares = _sums(hop)
        if self._hops:
            count = 2 * HOP_SAMPLES
            mean = (self._last[0] + total) / count
            rms = max(0.0, (self._last[1] + squares) / count - mean * mean) ** 0.5
            self._loud = self._loud + 1 if rms >= AUDIBLE_RMS else 0
            if self._loud == AUDIBLE_WINDOWS:
                self.sample = (self._hops - AUDIBLE_WINDOWS) * HOP_SAMPLES
        self._last = total, squares
        self._hops += 1


def _sums(hop: bytes) -> tuple[int, int]:
    samples = array.array("h", hop)
    if sys.byteorder == "big":
        samples.byteswap()
    return sum(samples), sum(map(mul, samples, samples))
