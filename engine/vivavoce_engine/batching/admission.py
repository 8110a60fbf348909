"""How long the queue takes: measured from what this machine has been doing. No torch, no clock of its own.

The engine thread records; any thread may ask. Each figure is one float that one thread writes.
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
"""What is assumed before anything has been measured: English text, twice real time."""


@dataclass(frozen=True, slots=True)
class Load:
    """What has been accepted and finds no row free: how many requests, and the frames of all that has not begun."""

    requests: int
    frames: float

    @staticmethod
    def total(loads: "Iterable[Load]") -> "Load":
        each = list(loads)
        return Load(sum(load.requests for load in each), math.fsum(load.frames for load in each))


@dataclass(frozen=True, slots=True)
class Rates:
    """What has been measured so far."""

    frames_per_token: float = FIRST_FRAMES_PER_TOKEN
    frames_per_s: float = FIRST_FRAMES_PER_S
    frames_per_utterance: float = 1.0

    def after_step(self, frames: int, seconds: float) -> "Rates":
        """A step made this many frames."""
        change = SMOOTHING * (frames / max(seconds, 1e-6) - self.frames_per_s)
        return replace(self, frames_per_s=self.frames_per_s + change)

    def after_utterance(self, text_tokens: int, frames: int) -> "Rates":
        """An utterance has ended by itself."""
        return replace(
            self,
            frames_per_token=self.frames_per_token + SMOOTHING * (frames / text_tokens - self.frames_per_token),
            frames_per_utterance=self.frames_per_utterance + SMOOTHING * (frames - self.frames_per_utterance),
        )


class Admission:
    """Accepts or refuses, and says when to come back. `rates` is replaced by whoever measures."""

    def __init__(self, config: EngineConfig, frame_s: float) -> None:
        self._max_requests = config.max_queue
        self._max_frames = config.max_queue_s / frame_s
        self.rates = Rates()

    def estimate_frames(self, text_tokens: int, max_frames: int) -> float:
        """How long a text's speech will be."""
        return min(float(max_frames), self.rates.frames_per_token * text_tokens)

    def check(self, waiting: Load, frames: float, max_wait_s: float | None, shared: Load | None = None) -> None:
        """Raises Overloaded if a request of `frames` has no place behind what waits already, or would wait too long.

        `waiting` is for this engine; `shared` is all that is in the queue, where several engines share its limits. An
        empty queue takes a text of any length.
        """
        wait_s = waiting.frames / self.rates.frames_per_s
        queue = waiting if shared is None else shared
        if queue.requests >= self._max_requests:
            raise self.overloaded(f"{queue.requests} requests are waiting already")
        if queue.requests and queue.frames + frames > self._max_frames:
            raise self.overloaded("the texts that are waiting are too long already")
        if max_wait_s is not None and wait_s > max_wait_s:
            raise self.overloaded(f"the wait is about {wait_s:.1f} s, longer than the request allows")

    def overloaded(self, message: str) -> Overloaded:
        """With the time in which, at the present rate, one utterance ends and another can begin."""
        return Overloaded(message, max(1.0, self.rates.frames_per_utterance / self.rates.frames_per_s))
