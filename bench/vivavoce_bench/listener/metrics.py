"""Figures of one request, computed from its reception by pure functions. bench/README.md defines them for readers.

Figures in ms from time zero (the first byte of the body sent, or over a WebSocket the first text):
    ttfb             to the first byte of the answer's body
    first_playable   to the first whole sample
    ttfa             to the moment when the first audible sample leaves the player, so it includes leading silence
    leading_silence  length of the audio before the first audible sample
    safe_start       to the earliest moment at which a player can start that then never runs dry
    safe_delay       from the first whole sample to that moment: the least delay that a player needs
    end_to_end       to the end of the answer
    rtf              end_to_end over the length of the audio
    late             from the time when the request was due to the generator's first work on it
    lag              from the time when the request was due to time zero: being late, and connecting
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vivavoce_client.protocol import SAMPLE_RATE

from vivavoce_bench.listener.player import Arrivals, Gap, play, safe_start
from vivavoce_bench.listener.reception import Reception

FIGURES = (
    "ttfb_ms",
    "first_playable_ms",
    "ttfa_ms",
    "leading_silence_ms",
    "safe_start_ms",
    "safe_delay_ms",
    "end_to_end_ms",
    "rtf",
    "late_ms",
    "lag_ms",
    "after_text_ms",
)
BUFFERS_MS = (100, 250, 500, 1000)
"""Audio that a player holds before it starts, for each of the players beside the one that holds nothing."""
INAUDIBLE = "nothing in it can be heard"


@dataclass(frozen=True, slots=True)
class Request:
    """A request to send: its due time, counted from the start of the run. Warm-up requests are not measured."""

    index: int
    due_s: float
    warmup: bool
    text_class: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """The start and the measured time of a run, by the clock of its receptions."""

    started_s: float
    window: tuple[float, float]
    """Start and end of the measured time, in seconds from the start of the run."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """Underruns of one player: their number, and their lengths together and at most, in ms."""

    count: int = 0
    total_ms: float = 0.0
    longest_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """Figures of one request. Moments (`_s`) count from the start of the run. A moment that never came is None."""

    index: int
    text_class: str
    warmup: bool
    due_s: float
    begun_s: float
    finished_s: float
    sent_s: float | None
    error: str | None
    late_ms: float
    ttfb_ms: float | None = None
    first_playable_ms: float | None = None
    ttfa_ms: float | None = None
    leading_silence_ms: float | None = None
    safe_start_ms: float | None = None
    safe_delay_ms: float | None = None
    end_to_end_ms: float | None = None
    rtf: float | None = None
    lag_ms: float | None = None
    after_text_ms: float | None = None
    """From the last text sent to the first audible sample (WebSocket only). Negative if the sample came first."""
    audio_s: float = 0.0
    audio_in_window_s: float = 0.0
    """Length of the audio that arrived in the measured time."""
    pieces: int = 0
    heard_from_s: float | None = None
    heard_until_s: float | None = None
    gaps: tuple[Gap, ...] = ()
    """Underruns of a player that starts with the first sample."""
    buffered: tuple[Stalls, ...] = ()
    """Underruns of the players with BUFFERS_MS."""


def measure(request: Request, begun_s: float, reception: Reception, error: str | None, timing: Timing) -> Measurement:
    """Computes the figures of one request, complete or not. It began at `begun_s` and has ended now."""
    facts = _identity(request, begun_s, reception, timing)
    if reception.sent_s is None:
        return Measurement(**facts, sent_s=None, error=error or "it was never sent")
    arrivals = [(at_s - timing.started_s, samples) for at_s, samples in reception.arrivals]
    playback = play(arrivals)
    sent_s = reception.sent_s - timing.started_s
    onset = reception.onset
    if error is None and onset is None:
        error = INAUDIBLE
    heard_s = None if playback is None or onset is None else playback.heard_at(onset)
    audio_s = sum(samples for _, samples in arrivals) / SAMPLE_RATE
    complete = error is None and reception.ended_s is not None
    end_s = reception.ended_s - reception.sent_s if complete and reception.ended_s is not None else None
    text_s = None if reception.last_text_s is None else reception.last_text_s - timing.started_s
    safe_s = safe_start(arrivals) if complete else None
    start_s, stop_s = timing.window
    return Measurement(
        **facts,
        sent_s=sent_s,
        error=error,
        ttfb_ms=_ms(reception.first_byte_s, reception.sent_s),
        first_playable_ms=None if playback is None else _ms(playback.started_s, sent_s),
        ttfa_ms=_ms(heard_s, sent_s),
        leading_silence_ms=None if onset is None else 1000 * onset / SAMPLE_RATE,
        safe_start_ms=_ms(safe_s, sent_s),
        safe_delay_ms=None if playback is None else _ms(safe_s, playback.started_s),
        end_to_end_ms=None if end_s is None else 1000 * end_s,
        rtf=None if end_s is None else end_s / audio_s,
        lag_ms=_ms(sent_s, request.due_s),
        after_text_ms=None if text_s is None else _ms(heard_s, text_s),
        audio_s=audio_s,
        audio_in_window_s=sum(samples for at_s, samples in arrivals if start_s <= at_s < stop_s) / SAMPLE_RATE,
        pieces=sum(samples > 0 for _, samples in arrivals),
        heard_from_s=None if playback is None else playback.started_s,
        heard_until_s=None if playback is None else playback.ended_s,
        gaps=() if playback is None else playback.gaps,
        buffered=_buffered(arrivals),
    )


def _identity(request: Request, begun_s: float, reception: Reception, timing: Timing) -> dict[str, Any]:
    return {
        "index": request.index,
        "text_class": request.text_class,
        "warmup": request.warmup,
        "due_s": request.due_s,
        "begun_s": begun_s,
        "finished_s": reception.now() - timing.started_s,
        "late_ms": 1000 * (begun_s - request.due_s),
    }


def _buffered(arrivals: Arrivals) -> tuple[Stalls, ...]:
    playbacks = (play(arrivals, buffer_ms / 1000) for buffer_ms in BUFFERS_MS)
    return tuple(Stalls() if playback is None else stalls_of(playback.gaps) for playback in playbacks)


def stalls_of(gaps: Sequence[Gap]) -> Stalls:
    lengths_ms = [1000 * gap.length_s for gap in gaps]
    return Stalls(len(gaps), sum(lengths_ms), max(lengths_ms, default=0.0))


def _ms(end_s: float | None, start_s: float) -> float | None:
    return None if end_s is None else 1000 * (end_s - start_s)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Nearest-rank percentiles, each of which is one of the `count` values, with mean and extremes."""

    count: int
    p50: float
    p95: float
    p99: float
    mean: float
    min: float
    max: float


def percentile(values: Iterable[float], percent: float) -> float:
    """Nearest-rank percentile: the smallest value that `percent` % of all values do not exceed."""
    return _of_ordered(sorted(values), percent)


def _of_ordered(ordered: Sequence[float], percent: float) -> float:
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def distribution(values: Sequence[float]) -> Distribution | None:
    """Describes values; None if there are none."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p95, p99 = (_of_ordered(ordered, percent) for percent in (50, 95, 99))
    return Distribution(len(ordered), p50, p95, p99, sum(ordered) / len(ordered), ordered[0], ordered[-1])
