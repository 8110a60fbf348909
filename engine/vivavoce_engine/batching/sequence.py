"""Host state of a running utterance: ints and flags only. Its tensors live in the runner's tables, at `row`.

An utterance is `Pending` until it owns a row, and a `Sequence` from then on.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.listener import Listener, Playback
from vivavoce_engine.batching.messages import AudioChunk, Finished
from vivavoce_engine.batching.pending import Pending, TrailingText
from vivavoce_engine.batching.word_times import SpeechEnd, SpokenWords

NEVER = 1 << 62
ENDLESS_FRAMES = 250
ENDLESS_FRAMES_PER_TOKEN = 25
"""Without another ceiling, speech counts as endless past 20 s plus 2 s for each text token. A token usually takes 0.1
to 0.4 s."""
SAME_FRAMES = 75
"""Speech counts as endless when 6 s of it are one and the same frame."""


class Sequence:
    """A running utterance. Four counters follow the life of its frames:

        frames_made      a step that draws the frame's codes has begun
        frames_known     that step has ended: the host knows whether the speech ends after the frame
        frames_vocoded   a step that decodes the frame into audio has begun
        frames_sent      that step has ended, and the audio is on its way to the listener

        0 ≤ frames_sent ≤ frames_vocoded ≤ frames_made ≤ max_frames, and frames_sent ≤ frames_known ≤ frames_made

    On a device that works beside the host, a step ends one turn of the loop after the next step has begun. So a frame
    may turn out to have been the last while later frames are being made: those are void and never sent.
    """

    def __init__(self, pending: Pending, row: int) -> None:
        assert pending.max_frames > 0
        self.pending = pending
        self.row = row
        self.pages: list[int] = []
        """Pages of the talker's KV cache that hold its positions, in order. The list grows with the utterance."""
        self.queue_wait_s = 0.0
        self.frames_made = 0
        self.frames_vocoded = 0
        self.frames_known = 0
        self.frames_sent = 0
        self.playback = Playback()
        self.ended = False
        """True if no further frame will be made: the model ended its speech, or the frame limit is reached."""
        self.words: SpokenWords | None = None
        """Set while the row runs, if the utterance asked for the times of its words."""
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
        """Position of the next frame in the talker's context."""
        return self.pending.prompt.prefill_tokens + self.frames_made

    @property
    def tells_words(self) -> bool:
        """True if the utterance asked for the times of its words."""
        return self.pending.request.word_times

    @property
    def window_from(self) -> int:
        """The first of the text tokens whose attention the next step tells, if the utterance asked for word times."""
        return 0 if self.words is None else self.words.path.window_from(self.frames_made)

    @property
    def window_at(self) -> int | None:
        """The talker's position of token `window_from`; None if the utterance did not ask for the times of words."""
        return self.pending.prompt.text_at + self.window_from if self.tells_words else None

    @property
    def tokens_seen(self) -> int:
        """Tokens of the text, with tts_eos, that the query of the first step that is not known can see."""
        prompt, text = self.pending.prompt, self.pending.trailing
        seen, known = self.frames_known + 1 + len(prompt.text_ids) - prompt.text_at, text.text_tokens + text.complete
        return seen if seen < known else known

    @property
    def can_step(self) -> bool:
        """True if another frame can be made now. It is false after the end, and while a live text has run dry."""
        return not self.ended and self.trailing.covers(self.frames_made)

    @property
    def min_frames(self) -> int:
        """Index of the first frame in whose place the speech may end, given the text that has arrived."""
        if not self.pending.request.end_after_text:
            return self.pending.prompt.min_frames
        return max(self.pending.prompt.min_frames, len(self.trailing.ids)) if self.trailing.complete else NEVER

    @property
    def frames_waiting(self) -> int:
        """Frames that are made and whose decoding has not begun."""
        return self.frames_made - self.frames_vocoded

    @property
    def complete(self) -> bool:
        return self.ended and self.frames_made == self.frames_known == self.frames_sent

    @property
    def end(self) -> SpeechEnd:
        """State of the speech: not all of it has been sent, or what ended it."""
        if not self.complete:
            return "open"
        return "cut" if self._hit_limit else "ended"

    def add_frame(self) -> None:
        """Counts a frame whose step begins."""
        assert not self.ended, "a row that has ended makes no frames"
        self.frames_made += 1
        self.ended = self._hit_limit = self.frames_made == self.pending.max_frames

    @property
    def is_void(self) -> bool:
        """True if the next step that ends has made a frame behind the end, because it began before that was known."""
        return self.ended and self.frames_known == self.frames_made

    def confirm_frame(self, end_of_speech: bool) -> None:
        """Counts a frame whose step has ended. `end_of_speech`: the model wants no frame after it.

        Where the talker reads first, it wants no frame in its place, and there is none.
        """
        if self.is_void:
            return
        if not (end_of_speech and self.pending.prompt.reads_first):
            self.frames_known += 1
        if end_of_speech:
            self.ended, self._hit_limit = True, False
            self.frames_made = self.frames_known
            self.frames_vocoded = min(self.frames_vocoded, self.frames_made)

    def add_vocoded(self, frames: int) -> None:
        """Counts frames whose decoding begins."""
        assert 0 < frames <= self.frames_waiting
        self.frames_vocoded += frames

    def drop_waiting(self, keep: int) -> None:
        """Gives up waiting frames until `keep` are left, for measurements of calls of a certain length."""
        assert 0 <= keep <= self.frames_waiting
        self.frames_vocoded = self.frames_made - keep

    def send(self, chunk: AudioChunk, samples_per_frame: int) -> AudioChunk | None:
        """The part of a decoded piece that is speech, without void frames; None if nothing is left."""
        frames = min(chunk.frames, self.frames_known - self.frames_sent)
        if frames == 0:
            return None
        self.frames_sent += frames
        return chunk.first(frames, samples_per_frame)

    def count_repeats(self, codes: NDArray[np.int16]) -> None:
        """Counts identical frames in a row; `codes` is int16 [frames, code groups]."""
        for frame in codes.tolist():
            self._same_frames = self._same_frames + 1 if frame == self._last_frame else 1
            self._last_frame = frame

    @property
    def runs_away(self) -> bool:
        """True if the model has lost its way. Released models never end 0.3 to 0.5 % of their utterances.

        The ceiling is generous, because a short text can be long when spoken: a number, an acronym, a pause.
        """
        ceiling = self.pending.request.endless_frames
        if ceiling is None:
            ceiling = ENDLESS_FRAMES + ENDLESS_FRAMES_PER_TOKEN * self.trailing.text_tokens
        return self.trailing.complete and (self.frames_known > ceiling or self._same_frames >= SAME_FRAMES)

    def finished(self) -> Finished:
        """The listener's last event."""
        assert self.complete
        reason: Literal["stop", "length"] = "length" if self._hit_limit else "stop"
        return Finished(self.trailing.text_tokens, self.frames_made, reason, self.queue_wait_s, self.pending.queued_s)
