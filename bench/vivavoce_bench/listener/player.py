"""A virtual player, which computes what a listener hears and when, and the search for the first audible sample. Pure.

The player starts with the first sample and plays while it has samples. When it runs dry, it waits for the next piece.
That is an underrun, and it delays everything after it by the length of the gap.
"""

import array
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import mul

from vivavoce_client.protocol import SAMPLE_RATE

HOP_SAMPLES = SAMPLE_RATE // 100
"""Samples in 10 ms. A window is two hops."""
AUDIBLE_RMS = 32768 * 10 ** (-45 / 20)
"""RMS of -45 dBFS, which two consecutive windows must reach."""
AUDIBLE_WINDOWS = 2
ON_TIME_S = 1e-6
"""Lateness below which a piece is on time: less than a sample, but more than the errors of float arithmetic."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A time without audio to play. It begins at `at_s` and lasts `length_s`."""

    at_s: float
    length_s: float


@dataclass(frozen=True, slots=True)
class Playback:
    """Playback times, by the clock of the arrivals. `pieces` are (start of playback in s, first sample, samples)."""

    pieces: tuple[tuple[float, int, int], ...]
    gaps: tuple[Gap, ...]

    @property
    def started_s(self) -> float:
        return self.pieces[0][0]

    @property
    def ended_s(self) -> float:
        heard_s, _, samples = self.pieces[-1]
        return heard_s + samples / SAMPLE_RATE

    def heard_at(self, sample: int) -> float:
        """Time at which this sample leaves the loudspeaker, in s."""
        for heard_s, first, samples in self.pieces:
            if sample < first + samples:
                return heard_s + (sample - first) / SAMPLE_RATE
        raise IndexError(sample)


def play(arrivals: Sequence[tuple[float, int]]) -> Playback | None:
    """Plays pieces of (time in s, samples) as they arrive. Returns None if there is nothing to play."""
    pieces: list[tuple[float, int, int]] = []
    gaps = []
    first = 0
    runs_dry_s = 0.0
    for at_s, samples in arrivals:
        if not samples:
            continue
        late_s = at_s - runs_dry_s if pieces else 0.0
        if late_s > ON_TIME_S:
            gaps.append(Gap(runs_dry_s, late_s))
        heard_s = max(at_s, runs_dry_s) if pieces else at_s
        pieces.append((heard_s, first, samples))
        first += samples
        runs_dry_s = heard_s + samples / SAMPLE_RATE
    return Playback(tuple(pieces), tuple(gaps)) if pieces else None


def audible_from(pcm: bytes) -> int | None:
    """Finds the sample at which lasting sound begins in 16-bit little-endian PCM, or None.

    It is the start of the first of two consecutive windows whose RMS about the mean is at least -45 dBFS. Windows are
    20 ms long and 10 ms apart, so the first loud sample lies within the first of the two.
    """
    loud = 0
    for hop, rms in enumerate(_window_rms(pcm)):
        loud = loud + 1 if rms >= AUDIBLE_RMS else 0
        if loud == AUDIBLE_WINDOWS:
            return (hop - 1) * HOP_SAMPLES
    return None


def _window_rms(pcm: bytes) -> Iterator[float]:
    samples = array.array("h", pcm[: len(pcm) - len(pcm) % 2])
    if sys.byteorder == "big":
        samples.byteswap()
    total, squares = _sums(samples, 0)
    for start in range(HOP_SAMPLES, len(samples) - HOP_SAMPLES + 1, HOP_SAMPLES):
        next_total, next_squares = _sums(samples, start)
        count = 2 * HOP_SAMPLES
        mean = (total + next_total) / count
        yield max(0.0, (squares + next_squares) / count - mean * mean) ** 0.5
        total, squares = next_total, next_squares


def _sums(samples: "array.array[int]", start: int) -> tuple[int, int]:
    hop = samples[start : start + HOP_SAMPLES]
    return sum(hop), sum(map(mul, hop, hop))
