"""Figures of a request and of a run, computed from receptions by pure functions.

Figures of a request, in ms from time zero (the first byte of the body sent, or over a WebSocket the first text):
    ttfb             to the first byte of the answer's body
    first_playable   to the first whole sample
    ttfa             to the moment when the first audible sample leaves the player, so it includes leading silence
    leading_silence  length of the audio before the first audible sample
    end_to_end       to the end of the answer
    rtf              end_to_end over the length of the audio
    lag              from the time when the request was due to time zero: lateness of the generator, and connecting
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vivavoce_client.protocol import SAMPLE_RATE

from vivavoce_bench.listener.player import Gap, audible_from, play
from vivavoce_bench.listener.reception import Reception

FIGURES = (
    "ttfb_ms",
    "first_playable_ms",
    "ttfa_ms",
    "leading_silence_ms",
    "end_to_end_ms",
    "rtf",
    "lag_ms",
    "after_text_ms",
)
INAUDIBLE = "nothing in it can be heard"


@dataclass(frozen=True, slots=True)
class Measurement:
    """Figures of one request. Moments (`_s`) count from the start of the run. A moment that never came is None."""

    index: int
    warmup: bool
    due_s: float
    sent_s: float | None
    error: str | None
    ttfb_ms: float | None = None
    first_playable_ms: float | None = None
    ttfa_ms: float | None = None
    leading_silence_ms: float | None = None
    end_to_end_ms: float | None = None
    rtf: float | None = None
    lag_ms: float | None = None
    after_text_ms: float | None = None
    """From the last text sent to the first audible sample (WebSocket only). Negative if the sample came first."""
    audio_s: float = 0.0
    heard_from_s: float | None = None
    heard_until_s: float | None = None
    gaps: tuple[Gap, ...] = ()
    arrivals: tuple[tuple[float, int], ...] = ()
    """(time in s, samples) of each piece."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to send: its due time, counted from the start of the run. Warm-up requests are not measured."""

    index: int
    due_s: float
    warmup: bool


def measure(request: Request, run_started_s: float, reception: Reception, error: str | None) -> Measurement:
    """Computes the figures of one request, complete or not."""
    arrivals = [(at_s - run_started_s, samples) for at_s, samples in reception.arrivals()]
    playback = play(arrivals)
    if reception.sent_s is None:
        return Measurement(request.index, request.warmup, request.due_s, None, error or "it was never sent")
    sent_s = reception.sent_s - run_started_s
    onset = audible_from(reception.pcm)
    if error is None and onset is None:
        error = INAUDIBLE
    heard_s = None if playback is None or onset is None else playback.heard_at(onset)
    audio_s = sum(samples for _, samples in arrivals) / SAMPLE_RATE
    complete = error is None and reception.ended_s is not None
    end_s = reception.ended_s - reception.sent_s if complete and reception.ended_s is not None else None
    text_s = None if reception.last_text_s is None else reception.last_text_s - run_started_s
    return Measurement(
        index=request.index,
        warmup=request.warmup,
        due_s=request.due_s,
        sent_s=sent_s,
        error=error,
        ttfb_ms=_ms(reception.first_byte_s, reception.sent_s),
        first_playable_ms=None if playback is None else _ms(playback.started_s, sent_s),
        ttfa_ms=_ms(heard_s, sent_s),
        leading_silence_ms=None if onset is None else 1000 * onset / SAMPLE_RATE,
        end_to_end_ms=None if end_s is None else 1000 * end_s,
        rtf=None if end_s is None else end_s / audio_s,
        lag_ms=_ms(sent_s, request.due_s),
        after_text_ms=None if text_s is None else _ms(heard_s, text_s),
        audio_s=audio_s,
        heard_from_s=None if playback is None else playback.started_s,
        heard_until_s=None if playback is None else playback.ended_s,
        gaps=() if playback is None else playback.gaps,
        arrivals=tuple(arrivals),
    )


def _ms(end_s: float | None, start_s: float) -> float | None:
    return None if end_s is None else 1000 * (end_s - start_s)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Nearest-rank percentiles, each of which is a measured value, with mean and extremes."""

    p50: float
    p95: float
    p99: float
    mean: float
    min: float
    max: float


def percentile(values: Iterable[float], percent: float) -> float:
    """Nearest-rank percentile: the smallest value that `percent` % of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def distribution(values: Sequence[float]) -> Distribution | None:
    if not values:
        return None
    p50, p95, p99 = (percentile(values, percent) for percent in (50, 95, 99))
    return Distribution(p50, p95, p99, sum(values) / len(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a run. It is valid if it had requests and each of them, warm-up included, was complete and audible.

    `figures` are distributions over the measured requests. `received_audio_s_per_s` is the audio that arrived within
    the measured window, divided by the length of the window.
    """

    valid: bool
    requests: int
    faults: tuple[str, ...]
    """Each fault with its count, in words."""
    peak_in_flight: int
    rate: float
    """Measured requests sent per second."""
    audio_s: float
    received_audio_s_per_s: float
    underrun_requests: int
    underruns: int
    stalled_ms: float
    longest_stall_ms: float
    figures: dict[str, Distribution]


def summarize(measurements: Sequence[Measurement], window: tuple[float, float], peak_in_flight: int) -> Summary:
    """Summarises a run. `window` is the measured time: its start and end, in seconds from the start of the run."""
    measured = [measurement for measurement in measurements if not measurement.warmup]
    faults: dict[str, int] = {}
    for measurement in measurements:
        if measurement.error is not None:
            faults[measurement.error] = faults.get(measurement.error, 0) + 1
    if not measured:
        faults["no request fell into the measured time"] = 1
    start_s, end_s = window
    measured_s = end_s - start_s
    within = sum(samples for each in measurements for at_s, samples in each.arrivals if start_s <= at_s < end_s)
    stalls_ms = [1000 * gap.length_s for each in measured for gap in each.gaps]
    figures = {}
    for name in FIGURES:
        found = distribution([value for each in measured if (value := getattr(each, name)) is not None])
        if found is not None:
            figures[name] = found
    return Summary(
        valid=not faults,
        requests=len(measured),
        faults=tuple(f"{count} times: {fault}" for fault, count in sorted(faults.items())),
        peak_in_flight=peak_in_flight,
        rate=len(measured) / measured_s,
        audio_s=sum(each.audio_s for each in measured),
        received_audio_s_per_s=within / SAMPLE_RATE / measured_s,
        underrun_requests=sum(bool(each.gaps) for each in measured),
        underruns=len(stalls_ms),
        stalled_ms=sum(stalls_ms),
        longest_stall_ms=max(stalls_ms, default=0.0),
        figures=figures,
    )
