"""A virtual player, which computes what a listener hears and when. Pure.

The player starts with the first sample, or once it holds enough of them, and plays while it has samples. When it runs
dry, it goes on with the next piece that arrives. That is an underrun, and it delays everything after it by the length
of the gap.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vivavoce_client.protocol import SAMPLE_RATE

ON_TIME_S = 1e-6
"""Lateness below which a piece is on time: less than a sample, but more than the errors of float arithmetic."""

Arrivals = Sequence[tuple[float, int]]
"""(time in s, samples) of each piece."""


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


def play(arrivals: Arrivals, buffer_s: float = 0.0) -> Playback | None:
    """Plays pieces as they arrive. Returns None if there is nothing to play.

    Playback starts with the piece by which `buffer_s` of audio has arrived, or with the last piece if there is never
    so much.
    """
    audio = [(at_s, samples) for at_s, samples in arrivals if samples]
    if not audio:
        return None
    pieces: list[tuple[float, int, int]] = []
    gaps = []
    first = 0
    runs_dry_s = _full_at(audio, buffer_s)
    for at_s, samples in audio:
        late_s = at_s - runs_dry_s
        if late_s > ON_TIME_S:
            gaps.append(Gap(runs_dry_s, late_s))
        heard_s = max(at_s, runs_dry_s)
        pieces.append((heard_s, first, samples))
        first += samples
        runs_dry_s = heard_s + samples / SAMPLE_RATE
    return Playback(tuple(pieces), tuple(gaps))


def _full_at(audio: Arrivals, buffer_s: float) -> float:
    held_s = 0.0
    for at_s, samples in audio:
        held_s += samples / SAMPLE_RATE
        if held_s >= buffer_s:
            return at_s
    return audio[-1][0]


def safe_start(arrivals: Arrivals) -> float:
    """Earliest time in s at which a player can start that then never runs dry. There must be something to play."""
    return max(at_s - before_s for at_s, before_s in _with_audio_before(arrivals))


def _with_audio_before(arrivals: Arrivals) -> Iterator[tuple[float, float]]:
    before = 0
    for at_s, samples in arrivals:
        if samples:
            yield at_s, before / SAMPLE_RATE
            before += samples
