"""Host state of one utterance: ints and flags only. Tensors live in the runner's tables, at `row`.

An utterance is `Pending` until it owns a row and a `Sequence` from then on; the two never mix.
"""

from dataclasses import dataclass

from vivavoce_engine.chunking import chunk_frames
from vivavoce_engine.messages import Finished
from vivavoce_engine.request import SynthesisRequest
from vivavoce_engine.stream import AudioStream
from vivavoce_engine.text import Prompt


@dataclass(frozen=True, slots=True)
class Pending:
    """An accepted utterance that waits for a row."""

    utterance_id: int
    request: SynthesisRequest
    prompt: Prompt
    seed: int
    max_frames: int
    stream: AudioStream


class Sequence:
    """A running utterance. Frames go made → vocoded: codes first, then decoded into audio and sent.

    0 ≤ frames_vocoded ≤ frames_made ≤ max_frames
    """

    def __init__(self, pending: Pending, row: int) -> None:
        assert pending.max_frames > 0
        self.pending = pending
        self.row = row
        self.frames_made = 0
        self.frames_vocoded = 0
        self.ended = False
        """No further frame will be made: the model ended its speech, or the frame limit is reached."""
        self._hit_limit = False

    @property
    def utterance_id(self) -> int:
        return self.pending.utterance_id

    @property
    def stream(self) -> AudioStream:
        return self.pending.stream

    @property
    def frames_waiting(self) -> int:
        """Frames made and not yet decoded into audio."""
        return self.frames_made - self.frames_vocoded

    @property
    def complete(self) -> bool:
        return self.ended and self.frames_waiting == 0

    def add_frame(self, end_of_speech: bool) -> None:
        """Counts a finished frame; `end_of_speech` says that the model wants no other after it."""
        assert not self.ended, "a row that has ended makes no frames"
        self.frames_made += 1
        self._hit_limit = not end_of_speech and self.frames_made == self.pending.max_frames
        self.ended = end_of_speech or self._hit_limit

    def next_chunk(self, max_chunk_frames: int, frames_coming: int) -> int:
        """Frames to decode in a step that makes `frames_coming` more frames (0 or 1): 0 while the piece is short."""
        want = chunk_frames(self.frames_vocoded, self.pending.request.first_chunk_frames, max_chunk_frames)
        have = self.frames_waiting + frames_coming
        if have >= want:
            return want
        return have if self.ended else 0

    def add_vocoded(self, frames: int) -> None:
        assert 0 < frames <= self.frames_waiting
        self.frames_vocoded += frames

    def finished(self) -> Finished:
        """What the listener hears last."""
        assert self.complete
        return Finished(self.pending.prompt.text_tokens, self.frames_made, "length" if self._hit_limit else "stop")
