"""Admission: estimates of the wait from measured rates, and the refusal of requests that would wait too long.

Torch-free, without a clock of its own. The engine's thread records rates and any thread may read them; each figure is
one float that one thread writes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import Overloaded

SMOOTHING = 0.1
"""Weight of a new measurement."""
FIRST_FRAMES_PER_TOKEN = 4.0
FIRST_FRAMES_PER_S = 25.0
"""Assumed before anything has been measured: English text, spoken at twice real time."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """A number of requests, and the estimated frames of their speech together."""

    requests: int = 0
    frames: float = 0.0

    def plus(self, frames: float) -> "Backlog":
        """One request more, of `frames`."""
        return Backlog(self.requests + 1, self.frames + frames)

    @staticmethod
    def total(backlogs: "Iterable[Backlog]") -> "Backlog":
        each = list(backlogs)
        return Backlog(sum(backlog.requests for backlog in each), math.fsum(backlog.frames for backlog in each))


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates measured so far, as running means."""

    frames_per_token: float = FIRST_FRAMES_PER_TOKEN
    frames_per_s: float = FIRST_FRAMES_PER_S
    frames_per_utterance: float = 1.0

    def after_step(self, frames: int, seconds: float) -> "Rates":
        """The rates after a step that made `frames` in `seconds`."""
        change = SMOOTHING * (frames / max(seconds, 1e-6) - self.frames_per_s)
        return replace(self, frames_per_s=self.frames_per_s + change)

    def after_utterance(self, text_tokens: int, frames: int) -> "Rates":
        """The rates after an utterance that ended by itself."""
        return replace(
            self,
            frames_per_token=self.frames_per_token + SMOOTHING * (frames / text_tokens - self.frames_per_token),
            frames_per_utterance=self.frames_per_utterance + SMOOTHING * (frames - self.frames_per_utterance),
        )


@dataclass(frozen=True, slots=True)
class LoopState:
    """A loop's account of itself, which its front decides by."""

    rates: Rates
    running: int = 0
    """Rows in use."""
    left_queue: int = 0
    """Requests that have left the queue so far, in whatever way."""
    left_queue_frames: float = 0.0
    """Estimated frames of those requests."""
    steps: int = 0
    frames: int = 0
    short_of_pages: bool = False
    """True while the next request in the queue waits for pages of the KV cache, though rows may be free."""

    def rows_free(self, rows: int) -> int:
        """Number of waiting requests that are about to start."""
        return 0 if self.short_of_pages else rows - self.running


def waiting(accepted: Backlog, state: LoopState, rows: int) -> Backlog:
    """The requests that find no row free, of all that were `accepted` so far.

    Which of the queued requests find a row is not known yet, so each counts with their mean length.
    """
    queued = accepted.requests - state.left_queue
    requests = queued - state.rows_free(rows)
    if requests <= 0:
        return Backlog()
    return Backlog(requests, (accepted.frames - state.left_queue_frames) * requests / queued)


class Admission:
    """Accepts requests or refuses them with a time to come back. The loop that measures replaces `rates`."""

    def __init__(self, config: EngineConfig, frame_s: float) -> None:
        self._max_requests = config.max_queue
        self._max_frames = config.max_queue_s / frame_s
        self.rates = Rates()

    def estimate_frames(self, text_tokens: int, max_frames: int) -> float:
        """Estimated frames of a text's speech."""
        return min(float(max_frames), self.rates.frames_per_token * text_tokens)

    def check(self, waiting: Backlog, frames: float, max_wait_s: float | None, shared: Backlog | None = None) -> None:
        """Refuses a request of `frames` that finds no place behind those that wait, or would wait too long.

        `waiting` is the backlog of this engine. `shared` is the backlog of all engines that share the queue's limits.
        An empty queue takes a text of any length.

        Raises:
            Overloaded: the request is refused.
        """
        assert frames >= 0
        wait_s = waiting.frames / self.rates.frames_per_s
        queue = waiting if shared is None else shared
        if queue.requests >= self._max_requests:
            raise self.overloaded(f"{queue.requests} requests are waiting already")
        if queue.requests and queue.frames + frames > self._max_frames:
            raise self.overloaded("the texts that are waiting are too long already")
        if max_wait_s is not None and wait_s > max_wait_s:
            raise self.overloaded(f"the wait is about {wait_s:.1f} s, longer than the request allows")

    def overloaded(self, message: str) -> Overloaded:
        """The refusal, with the time in which one utterance ends at the present rate and another can begin."""
        return Overloaded(message, max(1.0, self.rates.frames_per_utterance / self.rates.frames_per_s))
