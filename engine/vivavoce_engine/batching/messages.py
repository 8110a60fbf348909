"""Messages between callers and the engine's loop.

To the loop:   Submit, AppendText, Cancel, Shutdown.
From the loop: AudioChunk, Finished, Failed, each to the listener of one utterance.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.listener import Listener
from vivavoce_engine.batching.pending import Pending
from vivavoce_engine.errors import EngineError
from vivavoce_engine.text.words import TextWord


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue this utterance."""

    pending: Pending


@dataclass(frozen=True, slots=True)
class AppendText:
    """More text ids of a live utterance; `complete` marks the last of them. `words` are certain since the last ids."""

    utterance_id: int
    ids: tuple[int, ...]
    complete: bool
    words: tuple[TextWord, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """The listener has left: free the utterance's row or its place in the queue before the next frame."""

    utterance_id: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End the loop. Utterances that wait or run fail with NotServing."""


Command = Submit | AppendText | Cancel | Shutdown


@dataclass(frozen=True, slots=True)
class WordTime:
    """A word that is spoken: the characters from `start` to `end` (exclusive) of the utterance's text.

    `start_s` and `end_s` are seconds since the utterance's first sample, both None if the times are unknown. The text
    of a live utterance is the join of its fragments.
    """

    start: int
    end: int
    start_s: float | None
    end_s: float | None

    def __reduce__(self) -> tuple[type["WordTime"], tuple[int, int, float | None, float | None]]:
        """Pickles the values alone. A dataclass would look its fields up for each word, which takes longer."""
        return WordTime, (self.start, self.end, self.start_s, self.end_s)


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """A piece of speech: `codes` int16 [frames, code groups], and `pcm` [samples], float32 mono in [-1, 1].

    `words` are those whose times became certain with this piece, in order. A word comes with the piece that ends it or
    with a later one, and the last words with the last piece. Of speech that max_frames cut off, the words that were not
    said to their end do not come. There are none unless UtteranceOptions.word_times is set.
    """

    pcm: NDArray[np.float32]
    codes: NDArray[np.int16]
    words: tuple[WordTime, ...] = ()

    @property
    def frames(self) -> int:
        return len(self.codes)

    def first(self, frames: int, samples_per_frame: int) -> "AudioChunk":
        """The piece cut after its first `frames`. The first frame of a decoder that looks ahead has fewer samples."""
        if frames == self.frames:
            return self
        samples = len(self.pcm) - (self.frames - frames) * samples_per_frame
        return AudioChunk(self.pcm[:samples], self.codes[:frames], self.words)


@dataclass(frozen=True, slots=True)
class Finished:
    """The utterance is complete. `reason` is `length` if the frame limit ended it, and `stop` if the model did.

    `queue_wait_s` is the time that it waited for a row, since `queued_s` of `time.monotonic`.
    """

    text_tokens: int
    frames: int
    reason: Literal["stop", "length"]
    queue_wait_s: float = field(default=0.0, compare=False)
    queued_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """The utterance broke; nothing follows."""

    error: EngineError


StreamEvent = AudioChunk | Finished | Failed
Delivery = tuple[Listener, StreamEvent]
"""An event, and the listener it is for."""
