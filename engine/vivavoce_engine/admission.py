"""How long the queue takes: measured from what this machine has been doing. No torch, no clock of its own.

The engine thread records; any thread may ask. Each figure is one float that one thread writes.
"""

from dataclasses import dataclass

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


class Admission:
    """Accepts or refuses, and says when to come back."""

    def __init__(self, config: EngineConfig, frame_s: float) -> None:
        self._max_requests = config.max_queue
        self._max_frames = config.max_queue_s / frame_s
        self._frames_per_token = FIRST_FRAMES_PER_TOKEN
        self._frames_per_s = FIRST_FRAMES_PER_S
        self._frames_per_utterance = 1.0

    def record_step(self, frames: int, seconds: float) -> None:
        """Engine thread: a step made this many frames."""
        self._frames_per_s += SMOOTHING * (frames / max(seconds, 1e-6) - self._frames_per_s)

    def record_utterance(self, text_tokens: int, frames: int) -> None:
        """Engine thread: an utterance has ended by itself."""
        self._frames_per_token += SMOOTHING * (frames / text_tokens - self._frames_per_token)
        self._frames_per_utterance += SMOOTHING * (frames - self._frames_per_utterance)

    def estimate_frames(self, text_tokens: int, max_frames: int) -> float:
        """How long a text's speech will be."""
        return min(float(max_frames), self._frames_per_token * text_tokens)

    def check(self, waiting: Load, frames: float, max_wait_s: float | None) -> None:
        """Raises Overloaded if a request of `frames` has no place behind what waits already, or would wait too long.

        An empty queue takes a text of any length.
        """
        wait_s = waiting.frames / self._frames_per_s
        if waiting.requests >= self._max_requests:
            raise self.overloaded(f"{waiting.requests} requests are waiting already")
        if waiting.requests and waiting.frames + frames > self._max_frames:
            raise self.overloaded("the texts that are waiting are too long already")
        if max_wait_s is not None and wait_s > max_wait_s:
            raise self.overloaded(f"the wait is about {wait_s:.1f} s, longer than the request allows")

    def overloaded(self, message: str) -> Overloaded:
        """With the time in which, at the present rate, one utterance ends and another can begin."""
        return Overloaded(message, max(1.0, self._frames_per_utterance / self._frames_per_s))
