"""Figures of a run, from the figures of its requests. A request takes about 0.2 kB here, however long its speech is."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from vivavoce_bench.listener.metrics import (
    BUFFERS_MS,
    FIGURES,
    Distribution,
    Measurement,
    Stalls,
    distribution,
    stalls_of,
)
from vivavoce_bench.listener.player import ON_TIME_S

CONTINUITY_MS = (50, 100, 200)
"""Longest underruns that C50, C100 and C200 allow."""


@dataclass(frozen=True, slots=True)
class Underruns:
    """Underruns of one kind of player over many requests."""

    requests: int
    """Requests whose player ran dry at least once."""
    stalls: int
    stalled_ms: float
    longest_ms: float


@dataclass(frozen=True, slots=True)
class Heard:
    """Figures over the measured requests, all or those of one class of texts."""

    requests: int
    incomplete: int
    """Requests whose answer was not complete and audible."""
    audio_s: float
    underrun_requests: int
    underruns: int
    stalled_ms: float
    longest_stall_ms: float
    buffered: dict[str, Underruns]
    """Underruns of players that hold audio before they start, by its length in ms (BUFFERS_MS)."""
    continuity: dict[str, int]
    """C50, C100, C200: requests of several pieces whose longest underrun was at most 50, 100, 200 ms."""
    continuity_requests: int
    """Complete requests of several pieces: the whole of which `continuity` are parts."""
    figures: dict[str, Distribution]


@dataclass(frozen=True, slots=True)
class BurstHeard:
    """One burst: from its moment to the last listener's first audible sample, lateness and connecting included."""

    at_s: float
    requests: int
    heard: int
    last_first_audio_ms: float | None
    underrun_requests: int


@dataclass(frozen=True, slots=True)
class Summary(Heard):
    """Figures of a run. It is valid if it had requests and each of them, warm-up included, was complete and audible.

    `received_audio_s_per_s` is the audio that arrived within the measured window, divided by the length of the window.
    """

    valid: bool
    faults: tuple[str, ...]
    """Each fault with its count, in words."""
    peak_in_flight: int
    rate: float
    """Measured requests sent per second."""
    received_audio_s_per_s: float
    classes: dict[str, Heard]
    bursts: tuple[BurstHeard, ...]


def summarize(measurements: Iterable[Measurement], window: tuple[float, float], bursts: bool = False) -> Summary:
    """Summarises a run in one pass. `window` is the measured time: its start and end, from the start of the run.

    With `bursts`, requests that were due at the same time are one burst, which must find no other under way.
    """
    tally = _Tally()
    for measurement in measurements:
        tally.add(measurement)
    faults = dict(tally.faults)
    if not tally.measured.requests:
        faults["no request fell into the measured time"] = 1
    if bursts and (busy := tally.busy_bursts()):
        faults["a burst began before the answers to the one before it had ended"] = busy
    measured_s = window[1] - window[0]
    heard = tally.measured.heard()
    return Summary(
        **{field.name: getattr(heard, field.name) for field in fields(heard)},
        valid=not faults,
        faults=tuple(f"{count} times: {fault}" for fault, count in sorted(faults.items())),
        peak_in_flight=_peak(tally.begun_s, tally.finished_s),
        rate=heard.requests / measured_s,
        received_audio_s_per_s=tally.audio_in_window_s / measured_s,
        classes={name: group.heard() for name, group in sorted(tally.classes.items())},
        bursts=tally.bursts_heard() if bursts else (),
    )


class _Group:
    """The requests of one class of texts, or all, as one array for each figure."""

    def __init__(self) -> None:
        self.requests = 0
        self._incomplete = 0
        self._audio_s = 0.0
        self._figures = {name: array("d") for name in FIGURES}
        self._players = [_Player() for _ in range(1 + len(BUFFERS_MS))]
        self._continuity = dict.fromkeys(CONTINUITY_MS, 0)
        self._continuity_requests = 0

    def add(self, each: Measurement) -> None:
        self.requests += 1
        self._incomplete += each.error is not None
        self._audio_s += each.audio_s
        for name, values in self._figures.items():
            value = getattr(each, name)
            if value is not None:
                values.append(value)
        unbuffered = stalls_of(each.gaps)
        for player, stalls in zip(self._players, (unbuffered, *each.buffered), strict=False):
            player.add(stalls)
        if each.error is None and each.pieces > 1:
            self._continuity_requests += 1
            for limit_ms in CONTINUITY_MS:
                self._continuity[limit_ms] += unbuffered.longest_ms <= limit_ms + 1000 * ON_TIME_S

    def heard(self) -> Heard:
        at_once, *buffered = [player.underruns() for player in self._players]
        found = {name: distribution(values) for name, values in self._figures.items()}
        return Heard(
            requests=self.requests,
            incomplete=self._incomplete,
            audio_s=self._audio_s,
            underrun_requests=at_once.requests,
            underruns=at_once.stalls,
            stalled_ms=at_once.stalled_ms,
            longest_stall_ms=at_once.longest_ms,
            buffered={str(buffer_ms): each for buffer_ms, each in zip(BUFFERS_MS, buffered, strict=True)},
            continuity={f"c{limit_ms}": count for limit_ms, count in self._continuity.items()},
            continuity_requests=self._continuity_requests,
            figures={name: each for name, each in found.items() if each is not None},
        )


class _Player:
    def __init__(self) -> None:
        self._requests = self._stalls = 0
        self._total_ms = self._longest_ms = 0.0

    def add(self, stalls: Stalls) -> None:
        self._requests += stalls.count > 0
        self._stalls += stalls.count
        self._total_ms += stalls.total_ms
        self._longest_ms = max(self._longest_ms, stalls.longest_ms)

    def underruns(self) -> Underruns:
        return Underruns(self._requests, self._stalls, self._total_ms, self._longest_ms)


@dataclass(slots=True)
class _Burst:
    requests: int = 0
    warmup: bool = False
    heard: int = 0
    last_first_audio_ms: float | None = None
    underrun_requests: int = 0
    finished_s: float = 0.0


class _Tally:
    def __init__(self) -> None:
        self.measured = _Group()
        self.classes: dict[str, _Group] = {}
        self.faults: dict[str, int] = {}
        self.begun_s, self.finished_s = array("d"), array("d")
        self.audio_in_window_s = 0.0
        self._bursts: dict[float, _Burst] = {}

    def add(self, each: Measurement) -> None:
        self.begun_s.append(each.begun_s)
        self.finished_s.append(each.finished_s)
        self.audio_in_window_s += each.audio_in_window_s
        if each.error is not None:
            self.faults[each.error] = self.faults.get(each.error, 0) + 1
        self._add_to_burst(each)
        if not each.warmup:
            self.measured.add(each)
            self.classes.setdefault(each.text_class, _Group()).add(each)

    def _add_to_burst(self, each: Measurement) -> None:
        burst = self._bursts.setdefault(each.due_s, _Burst())
        burst.requests += 1
        burst.warmup = each.warmup
        burst.underrun_requests += bool(each.gaps)
        burst.finished_s = max(burst.finished_s, each.finished_s)
        if each.ttfa_ms is not None and each.lag_ms is not None:
            burst.heard += 1
            burst.last_first_audio_ms = max(burst.last_first_audio_ms or 0.0, each.lag_ms + each.ttfa_ms)

    def busy_bursts(self) -> int:
        ordered = sorted(self._bursts.items())
        ends = (burst.finished_s for _, burst in ordered)
        return sum(ended_s > due_s for ended_s, (due_s, _) in zip(ends, ordered[1:], strict=False))

    def bursts_heard(self) -> tuple[BurstHeard, ...]:
        return tuple(
            BurstHeard(due_s, burst.requests, burst.heard, burst.last_first_audio_ms, burst.underrun_requests)
            for due_s, burst in sorted(self._bursts.items())
            if not burst.warmup
        )


def _peak(begun_s: Sequence[float], finished_s: Sequence[float]) -> int:
    """Largest number of requests under way at one time. One that begins as another ends does not meet it."""
    peak = ended = 0
    ends = sorted(finished_s)
    for begun, at_s in enumerate(sorted(begun_s)):
        while ended < len(ends) and ends[ended] <= at_s:
            ended += 1
        peak = max(peak, begun + 1 - ended)
    return peak
