"""The listener of an utterance, as the loop sees it, and a model of what it has left to play."""

import math
from typing import Protocol


class Listener(Protocol):
    """The receiver of an utterance's audio, as far as the loop that makes it is concerned."""

    utterance_id: int

    @property
    def unread_frames(self) -> int:
        """Frames that were sent and that the reader has not taken yet."""
        ...

    def count_sent(self, frames: int) -> None:
        """Announces frames that are on their way. Called on the engine's thread only."""
        ...


class Playback:
    """A player that starts with the first piece of audio and waits whenever it has nothing to play."""

    def __init__(self) -> None:
        self.runs_dry_s = math.inf
        """Time at which all audio received so far has been played; infinite before the first piece."""

    def add_audio(self, at_s: float, length_s: float) -> float:
        """Adds a piece of `length_s` that arrives at `at_s`. Returns how long the player had nothing to play before."""
        assert length_s >= 0
        late_s = max(0.0, at_s - self.runs_dry_s)
        begins_s = at_s if late_s or math.isinf(self.runs_dry_s) else self.runs_dry_s
        self.runs_dry_s = begins_s + length_s
        return late_s
