"""All that crosses the thread boundary of the engine. Reading this file is knowing the system.

In:  Submit, AppendText, Cancel, Shutdown (event loop → engine thread).
Out: AudioChunk, Finished, Failed (engine thread → AudioStream).
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.listener import Listener

if TYPE_CHECKING:
    from vivavoce_engine.batching.pending import Pending
    from vivavoce_engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue this utterance."""

    pending: "Pending"


@dataclass(frozen=True, slots=True)
class AppendText:
    """More text ids of a live utterance; `complete` with the last of them."""

    utterance_id: int
    ids: tuple[int, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class Cancel:
    """The listener is gone: free the utterance's row (or queue place) before the next frame."""

    utterance_id: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Stop the thread. Whatever still waits or runs fails with NotServing."""


Command = Submit | AppendText | Cancel | Shutdown


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """A piece of speech: its codec frames, `codes` [frames, code groups], and their audio, float32 mono in [-1, 1]."""

    pcm: NDArray[np.float32]
    codes: NDArray[np.int16]

    @property
    def frames(self) -> int:
        return len(self.codes)

    def first(self, frames: int) -> "AudioChunk":
        """Its first frames."""
        if frames == self.frames:
            return self
        return AudioChunk(self.pcm[: len(self.pcm) // self.frames * frames], self.codes[:frames])


@dataclass(frozen=True, slots=True)
class Finished:
    """The utterance is complete. `reason` is `length` when the frame limit ended it, not the model.

    `queue_wait_s` is how long it waited for a row.
    """

    text_tokens: int
    frames: int
    reason: Literal["stop", "length"]
    queue_wait_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """The utterance broke; nothing follows."""

    error: "EngineError"


StreamEvent = AudioChunk | Finished | Failed
Delivery = tuple[Listener, StreamEvent]
