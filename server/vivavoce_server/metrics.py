"""Metrics for Prometheus: all names, help texts and buckets, and the meter of one request."""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.requests import ClientDisconnect
from vivavoce_engine import Finished, NotServing, Playback, Reason, SpeechEngine

from vivavoce_server.build import VERSION, build_commit
from vivavoce_server.errors import status_of
from vivavoce_server.ledger import Ledger
from vivavoce_server.request_lines import current_line, note
from vivavoce_server.speaking_rate import NOTHING_SAID, SpeakingRate

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Variable of prometheus_client: the folder in which several processes count together."""
RequestOutcome = Literal["completed", "disconnected", "cancelled", "rejected", "refused", "failed", "cut_off"]
PhraseSource = Literal["hit", "miss", "bypass", "not_modified"]
"""Source of a request's speech while phrases are cached: the cache; the engine; the engine, because such a request is
never cached; the client, which has the file already."""
PhraseError = Literal["damaged", "read", "write"]
"""An entry that the cache lost: it is not what was written, it cannot be read, or it could not be written."""
UNKNOWN_MODEL = ""
"""Model label of requests that ended before their model was known. Prometheus treats an empty label as absent."""
TRY_AGAIN = frozenset({429, 503})
FRAME_S = 0.08
TTFA_BUCKETS_S = (0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
RTF_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2.0, 5.0)
QUEUE_WAIT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
LAG_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CHARACTERS_PER_MINUTE_BUCKETS = (100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1100, 1200, 1300, 1400, 1600, 2000)
WORDS_PER_MINUTE_BUCKETS = (60, 90, 110, 130, 150, 170, 190, 210, 230, 250, 270, 300, 340, 400)
LEAST_RATED_S = 1.0
"""Shortest speech, in seconds, whose rate is observed: in a shorter one the silence at its end decides."""
UNDERRUN_BUCKETS_S = (0.0, FRAME_S / 2, FRAME_S, 2 * FRAME_S, 4 * FRAME_S, 1.0, 3.0)


def outcome_of(error: Exception, admitted: bool = False) -> RequestOutcome:
    """Outcome of a request that fails with this error before its first audio."""
    if isinstance(error.__cause__, ClientDisconnect):
        return "disconnected"
    if admitted and isinstance(error, NotServing):  # the request had been accepted
        return "failed"
    status = status_of(error)
    if status in TRY_AGAIN:
        return "refused"
    return "rejected" if status < 500 else "failed"


class PhraseMetrics:
    """The metrics of the phrase cache. All series begin at 0."""

    def __init__(self, registry: CollectorRegistry, models: Iterable[str]) -> None:
        self.requests = Counter(
            "vivavoce_cache_phrases",
            f"Requests while phrases are cached, by the source of their speech: {', '.join(get_args(PhraseSource))}",
            ("model", "source"),
            registry=registry,
        )
        self.stored = Counter("vivavoce_cache_stored", "Phrases that were cached", registry=registry)
        self.evicted = Counter("vivavoce_cache_evicted", "Cached phrases that left for others", registry=registry)
        self.errors = Counter(
            "vivavoce_cache_errors",
            f"Phrases that the cache lost: {', '.join(get_args(PhraseError))}",
            ("kind",),
            registry=registry,
        )
        self.size_bytes: Callable[[], int] = int
        """Tells the bytes of all cached phrases; 0 without a cache."""
        for model in models:
            for source in get_args(PhraseSource):
                self.requests.labels(model, source)
        for kind in get_args(PhraseError):
            self.errors.labels(kind)


class RateMetrics:
    """The speaking rates of complete speech, at the model's own pace."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.characters_per_minute = Histogram(
            "vivavoce_characters_per_minute",
            "Characters a minute of complete speech of a second or more, at the model's own pace",
            ("model",),
            buckets=CHARACTERS_PER_MINUTE_BUCKETS,
            registry=registry,
        )
        self.words_per_minute = Histogram(
            "vivavoce_words_per_minute",
            "Words a minute of complete speech of a second or more, at the model's own pace",
            ("model",),
            buckets=WORDS_PER_MINUTE_BUCKETS,
            registry=registry,
        )

    def observe(self, model: str, rate: SpeakingRate) -> None:
        """Observes the rate of a request, unless its speech is too short to have one."""
        characters, words = rate.characters_per_minute, rate.words_per_minute
        if rate.seconds >= LEAST_RATED_S and characters is not None and words is not None:
            self.characters_per_minute.labels(model).observe(characters)
            self.words_per_minute.labels(model).observe(words)


class Metrics:
    """The metrics of one app, in a registry of their own, so that several apps can share a process.

    Where the environment has FOLDER_VARIABLE, prometheus_client keeps counters and histograms in files of that folder,
    of each process its own. They are then told as the sums over all processes, those that have died too.
    """

    def __init__(self, engines: Mapping[str, SpeechEngine], ledger: Ledger) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "vivavoce_requests",
            f"Speech requests by how they ended: {', '.join(get_args(RequestOutcome))}",
            ("model", "outcome"),
            registry=self.registry,
        )
        self.ttfa_s = self._histogram(
            "ttfa_seconds", "Seconds from request to first audio sample sent, queue included", TTFA_BUCKETS_S
        )
        self.queue_wait_s = self._histogram(
            "queue_wait_seconds",
            "Seconds that a request's first text waited for a row, observed after the text was spoken",
            QUEUE_WAIT_BUCKETS_S,
        )
        self.rtf = self._histogram("rtf", "Seconds to make a second of audio, over a whole request", RTF_BUCKETS)
        self.underrun_s = self._histogram(
            "underrun_seconds",
            "Seconds without sound in a player that starts at the first sample, over a whole request",
            UNDERRUN_BUCKETS_S,
        )
        self.rates = RateMetrics(self.registry)
        self.audio_s = Counter(
            "vivavoce_audio_seconds",
            "Seconds of audio made for listeners, cancelled speech included",
            ("model",),
            registry=self.registry,
        )
        self.endless = Counter(
            "vivavoce_endless_speech",
            "Attempts at speech that the model did not end by itself",
            ("model",),
            registry=self.registry,
        )
        self.event_loop_lag_s = Histogram(
            "vivavoce_event_loop_lag_seconds",
            "Seconds by which a heartbeat of the event loop is late, measured 40 times a second",
            buckets=LAG_BUCKETS_S,
            registry=self.registry,
        )
        self.phrases = PhraseMetrics(self.registry, engines)
        self._now = _Now(engines, ledger, self.phrases)
        self._begin_at_zero(engines)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format. Reading the files of other processes takes some milliseconds."""
        counted = self.registry
        if os.environ.get(FOLDER_VARIABLE):
            counted = CollectorRegistry()
            MultiProcessCollector(counted)  # type: ignore[no-untyped-call]
        now = CollectorRegistry()
        now.register(self._now)
        return generate_latest(counted) + generate_latest(now)

    def _begin_at_zero(self, models: Iterable[str]) -> None:
        """Creates all series at 0. A rate misses the first event of a series that begins with that event."""
        for model in models:
            for outcome in get_args(RequestOutcome):
                self.requests.labels(model, outcome)
            for of_model in (
                *(self.ttfa_s, self.queue_wait_s, self.rtf, self.underrun_s, self.audio_s, self.endless),
                *(self.rates.characters_per_minute, self.rates.words_per_minute),
            ):
                of_model.labels(model)
        for outcome in ("disconnected", "rejected", "refused", "failed"):
            self.requests.labels(UNKNOWN_MODEL, outcome)

    @contextmanager
    def admission(self, model: str = UNKNOWN_MODEL) -> Iterator[None]:
        """Counts a request that is refused inside the block."""
        try:
            yield
        except Exception as error:
            outcome = outcome_of(error)
            self.requests.labels(model, outcome).inc()
            note(outcome=outcome)
            raise

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"vivavoce_{name}", documentation, ("model",), buckets=buckets, registry=self.registry)


class _Now(Collector):
    """Figures that are read at each scrape: the engines' own counters, and what any process of the server can tell."""

    def __init__(self, engines: Mapping[str, SpeechEngine], ledger: Ledger, phrases: PhraseMetrics) -> None:
        self._engines = engines
        self._ledger = ledger
        self._phrases = phrases

    def collect(self) -> Iterable[Metric]:
        build = GaugeMetricFamily(
            "vivavoce_build_info",
            "Always 1; the labels tell the version, and the git commit where it is known",
            labels=["version", "commit"],
        )
        build.add_metric([VERSION, build_commit()], 1)
        live, cached = "Live (WebSocket) connections that are open", "Bytes of all cached phrases"
        yield build
        yield GaugeMetricFamily("vivavoce_live_sessions", live, self._ledger.sessions)
        yield GaugeMetricFamily("vivavoce_cache_bytes", cached, self._phrases.size_bytes())
        yield from self._of_engines()

    def _of_engines(self) -> Iterable[Metric]:
        rows = GaugeMetricFamily("vivavoce_rows", "Utterances that can run at once", labels=["model"])
        active = GaugeMetricFamily("vivavoce_active_rows", "Utterances that run", labels=["model"])
        queued = GaugeMetricFamily("vivavoce_queued", "Utterances that wait for a row", labels=["model"])
        steps = CounterMetricFamily("vivavoce_engine_steps", "Engine steps", labels=["model"])
        frames = CounterMetricFamily("vivavoce_frames", "Codec frames made; their rate is frames/s", labels=["model"])
        processes = GaugeMetricFamily(
            "vivavoce_engine_processes", "Processes that are up, with the model in memory", labels=["model"]
        )
        restarts = CounterMetricFamily(
            "vivavoce_engine_restarts",
            f"Times that an engine broke down, by reason: {', '.join(get_args(Reason))}",
            labels=["model", "reason"],
        )
        for model, engine in self._engines.items():
            stats = engine.stats()
            rows.add_metric([model], engine.rows)
            active.add_metric([model], stats.running)
            queued.add_metric([model], stats.queued)
            steps.add_metric([model], stats.steps)
            frames.add_metric([model], stats.frames)
            processes.add_metric([model], engine.processes)
            counts = engine.restarts
            for reason in get_args(Reason):
                restarts.add_metric([model, reason], counts[reason])
        return [rows, active, queued, steps, frames, processes, restarts]


class SpeechMeter:
    """Measures one request: first audio, speed, and gaps in a virtual player that starts at the first sample."""

    def __init__(
        self,
        metrics: Metrics,
        model: str,
        clock: Callable[[], float] = time.monotonic,
        paced_by_text: bool = False,
    ) -> None:
        """`paced_by_text`: speech waits for text that comes later. Its speed and its gaps are then not the server's."""
        self._metrics = metrics
        self._paced_by_text = paced_by_text
        self._model = model
        self._clock = clock
        self._made_s = metrics.audio_s.labels(model)
        self._line = current_line()
        self._asked_s = clock()
        self._playback = Playback()
        self._audio_s = 0.0
        self._underrun_s = 0.0

    def add_audio(self, seconds: float) -> None:
        """Records that `seconds` of audio are now available to the listener. Dropped silence is no audio."""
        if not seconds:
            return
        now_s = self._clock()
        if not self.heard:
            self._metrics.ttfa_s.labels(self._model).observe(now_s - self._asked_s)
            self._line.note_first_audio()
        self._underrun_s += self._playback.add_audio(now_s, seconds)
        self._audio_s += seconds
        self._made_s.inc(seconds)

    @property
    def heard(self) -> bool:
        """True if there was any audio."""
        return not math.isinf(self._playback.runs_dry_s)

    def add_queue_wait(self, first: Finished) -> None:
        """Records the seconds that the request's first text waited for a row."""
        self._metrics.queue_wait_s.labels(self._model).observe(first.queue_wait_s)
        self._line.note_queue(first.queued_s, first.queue_wait_s)

    def count_endless(self) -> None:
        """Counts speech that the model did not end by itself. The request may still succeed with another attempt."""
        self._metrics.endless.labels(self._model).inc()

    def end(
        self,
        outcome: RequestOutcome,
        sent_s: float | None = None,
        frames: int = 0,
        rate: SpeakingRate = NOTHING_SAID,
    ) -> None:
        """Counts the request, and tells its log line how it ended.

        `sent_s` are the seconds of its file that were sent, and `frames` their codec frames; None if it never began.
        `rate` is observed if the speech is complete.
        """
        self._line.note(model=self._model, outcome=outcome)
        if sent_s is not None:
            self._line.note(audio_s=float(sent_s), frames=frames)
        self._metrics.requests.labels(self._model, outcome).inc()
        if outcome == "completed" and self._audio_s and not self._paced_by_text:
            self._metrics.rtf.labels(self._model).observe((self._clock() - self._asked_s) / self._audio_s)
            self._metrics.underrun_s.labels(self._model).observe(self._underrun_s)
        if outcome == "completed":
            self._metrics.rates.observe(self._model, rate)
