"""Host state of one utterance: ints and flags only. Tensors live in the runner's tables, at `row`.

An utterance is `Pending` until it owns a row and a `Sequence` from then on; the two never mix.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.chunking import Playback, chunk_frames
from vivavoce_engine.batching.listener import Listener
from vivavoce_engine.batching.messages import AudioChunk, Finished
from vivavoce_engine.batching.pending import Pending, TrailingText

MIN_FRAMES = 2
"""The reference draws no end of speech before two codes exist (min_new_tokens=2)."""
NEVER = 1 << 62
ENDLESS_FRAMES = 250
ENDLESS_FRAMES_PER_TOKEN = 25
"""Speech is endless past 20 s plus 2 s for each text token; a token usually takes 0.1 to 0.4 s."""
SAME_FRAMES = 75
"""Speech is endless when 6 s of it are one and the same frame."""


class Sequence:
    """A running utterance. Frames go made → vocoded: codes first, then decoded into audio and sent.

    Both are counted when the step that does it begins. What it gave is known when it has ended, a step later on a
    device that works beside the host: `frames_known` and `frames_sent` follow then. If a frame turns out to have been
    the last, what was begun after it is void.

    0 ≤ frames_sent ≤ frames_vocoded ≤ frames_made ≤ max_frames, and frames_sent ≤ frames_known ≤ frames_made
    """

    def __init__(self, pending: Pending, row: int) -> None:
        assert pending.max_frames > 0
        self.pending = pending
        self.row = row
        self.pages: list[int] = []
        """Where its positions lie in the talker's KV cache, in their order; it grows while the utterance does."""
        self.queue_wait_s = 0.0
        self.frames_made = 0
        self.frames_vocoded = 0
        self.frames_known = 0
        """Frames of which is known whether the speech ended after them."""
        self.frames_sent = 0
        self.playback = Playback()
        self.ended = False
        """No further frame will be made: the model ended its speech, or the frame limit is reached."""
        self._hit_limit = False
        self._last_frame: list[int] = []
        self._same_frames = 0

    @property
    def utterance_id(self) -> int:
        return self.pending.utterance_id

    @property
    def stream(self) -> Listener:
        return self.pending.stream

    @property
    def trailing(self) -> TrailingText:
        return self.pending.trailing

    @property
    def position(self) -> int:
        """Of the next frame, in the talker's context."""
        return self.pending.prompt.prefill_tokens + self.frames_made

    @property
    def can_step(self) -> bool:
        """Whether another frame can be made now; a live text may have run dry."""
        return not self.ended and self.trailing.covers(self.frames_made)

    @property
    def min_frames(self) -> int:
        """The first frame in whose place the speech may end, by the text that is known."""
        if not self.pending.request.end_after_text:
            return MIN_FRAMES
        return max(MIN_FRAMES, len(self.trailing.ids)) if self.trailing.complete else NEVER

    @property
    def frames_waiting(self) -> int:
        """Frames made and not yet decoded into audio."""
        return self.frames_made - self.frames_vocoded

    @property
    def complete(self) -> bool:
        return self.ended and self.frames_made == self.frames_known == self.frames_sent

    def add_frame(self) -> None:
        """Counts a frame whose step begins."""
        assert not self.ended, "a row that has ended makes no frames"
        self.frames_made += 1
        self.ended = self._hit_limit = self.frames_made == self.pending.max_frames

    def know_frame(self, end_of_speech: bool) -> None:
        """A frame's step has ended; `end_of_speech` says that the model wants no other after it."""
        if self.ended and self.frames_known == self.frames_made:
            return  # it was begun before the end was known
        self.frames_known += 1
        if end_of_speech:
            self.ended, self._hit_limit = True, False
            self.frames_made = self.frames_known
            self.frames_vocoded = min(self.frames_vocoded, self.frames_made)

    def next_chunk(self, max_chunk_frames: int, frames_coming: int) -> int:
        """Frames to decode in a step that makes `frames_coming` more frames (0 or 1): 0 while the piece is short.

        What waits is not held back when no frame is coming: the speech has ended, or its text has run dry.
        """
        want = chunk_frames(self.frames_vocoded, self.pending.request.first_chunk_frames, max_chunk_frames)
        have = self.frames_waiting + frames_coming
        if have >= want:
            return want
        return have if self.ended or not self.trailing.covers(self.frames_made) else 0

    def add_vocoded(self, frames: int) -> None:
        """Counts frames whose decoding begins."""
        assert 0 < frames <= self.frames_waiting
        self.frames_vocoded += frames

    def send(self, chunk: AudioChunk) -> AudioChunk | None:
        """What of a decoded piece is speech: without the frames that were begun after the last."""
        frames = min(chunk.frames, self.frames_known - self.frames_sent)
        if frames == 0:
            return None
        self.frames_sent += frames
        return chunk.first(frames)

    def watch(self, codes: NDArray[np.int16]) -> None:
        """Counts how many frames in a row are the same; `codes` [frames, code groups]."""
        for frame in codes.tolist():
            self._same_frames = self._same_frames + 1 if frame == self._last_frame else 1
            self._last_frame = frame

    @property
    def runs_away(self) -> bool:
        """Whether the model has lost its way: real models never end 0.3 to 0.5 % of their utterances.

        The ceiling is generous, since a short text may be long in speech (a number, an acronym, a pause).
        """
        ceiling = ENDLESS_FRAMES + ENDLESS_FRAMES_PER_TOKEN * self.trailing.text_tokens
        return self.trailing.complete and (self.frames_known > ceiling or self._same_frames >= SAME_FRAMES)

    def finished(self) -> Finished:
        """What the listener hears last."""
        assert self.complete
        reason: Literal["stop", "length"] = "length" if self._hit_limit else "stop"
        return Finished(self.trailing.text_tokens, self.frames_made, reason, self.queue_wait_s)
