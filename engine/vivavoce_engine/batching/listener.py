"""The listener of an utterance, as the loop sees it."""

from typing import Protocol


class Listener(Protocol):
    """Who hears an utterance, as far as the loop that makes it is concerned."""

    utterance_id: int

    @property
    def unread_frames(self) -> int:
        """Frames made and not yet taken by the reader."""
        ...

    def count_sent(self, frames: int) -> None:
        """Engine thread only: announces frames that are on their way."""
        ...
