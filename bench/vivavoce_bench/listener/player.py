"""What a listener would have heard: a virtual player, and where audible sound begins. Pure functions.

The player starts with the first sample and plays on as long as it has samples. Whenever it runs dry it waits for the
next piece: that is an underrun, and everything after it is heard later by the length of the gap.
"""

import array
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import mul

from vivavoce_client.protocol import SAMPLE_RATE

HOP_SAMPLES = SAMPLE_RATE // 100
"""10 ms; a window is two hops."""
AUDIBLE_RMS = 32768 * 10 ** (-45 / 20)
"""-45 dBFS: what two consecutive windows have to reach."""
AUDIBLE_WINDOWS = 2
ON_TIME_S = 1e-6
"""A piece that is late by less than this is on time: a fraction of a sample, and more than float arithmetic errs."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The player had nothing to play from `at_s` on, for `length_s`."""

    at_s: float
    length_s: float


@dataclass(frozen=True, slots=True)
class Playback:
    """When what was heard. Times are those of the arrivals; `pieces` are (heard from, first sample, samples)."""

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
        """When this sample leaves the loudspeaker."""
        for heard_s, first, samples in self.pieces:
            if sample < first + samples:
                return heard_s + (sample - first) / SAMPLE_RATE
        raise IndexError(sample)


def play(arrivals: Sequence[tuple[float, int]]) -> Playback | None:
    """Plays pieces of (time, samples) as they arrive; None where there is nothing to play."""
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
    """The sample at which sound begins that lasts: the start of the first of two consecutive windows of 20 ms, 10 ms
    apart, whose RMS without its mean is at least -45 dBFS, so that the first loud sample lies within it. None where
    there is none. `pcm` is 16-bit little-endian."""
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
