"""An accepted utterance before it owns a row, and the text that goes with its frames."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from vivavoce_engine.batching.line import Waiting
from vivavoce_engine.batching.listener import Listener
from vivavoce_engine.request import UtteranceOptions
from vivavoce_engine.text.prompt import Prompt
from vivavoce_engine.text.words import TextWord


class TrailingText:
    """The text ids that are fed to the talker with the frames: id k with frame k, and tts_pad after the last.

    While `complete` is false more ids may come, and a frame whose id has not arrived must wait. The last id of a
    complete text is tts_eos. There are no ids at all if the whole text was part of the prompt.
    """

    def __init__(self, ids: Iterable[int], complete: bool, text_tokens: int, words: Iterable[TextWord] = ()) -> None:
        self.ids = list(ids)
        self.complete = complete
        self.text_tokens = text_tokens
        """Tokens of the text so far, including those in the prompt."""
        self.words = list(words)
        """Words of the text so far that later text cannot change, if the utterance asked for their times."""

    def append(self, ids: tuple[int, ...], complete: bool, words: Iterable[TextWord] = ()) -> None:
        """Adds text ids; the last id of a complete text is tts_eos."""
        assert not self.complete, "nothing follows a complete text"
        self.ids += ids
        self.words += words
        self.complete = complete
        self.text_tokens += len(ids) - complete

    def covers(self, frame: int) -> bool:
        """True if the text id of this frame is known."""
        return self.complete or frame < len(self.ids)


@dataclass(frozen=True, slots=True)
class Pending:
    """An accepted utterance that waits for a row. Only `trailing` changes, while text arrives.

    `request` is a SynthesisRequest, or the options alone of a text that arrives later. `frames` is the estimated length
    of its speech. `queued_s` and `deadline_s` are times of `time.monotonic`; past the deadline it is refused.
    """

    utterance_id: int
    request: UtteranceOptions
    prompt: Prompt
    seed: int
    max_frames: int
    stream: Listener
    trailing: TrailingText
    frames: float = 0.0
    deadline_s: float = math.inf
    queued_s: float = math.inf

    @property
    def row_frames(self) -> float:
        """Estimated frames of this text and of those that follow it in its row."""
        return self.frames * (1.0 + self.request.following)

    def waiting(self, frame_s: float) -> Waiting:
        """The utterance as the queue counts it. A frame takes `frame_s`."""
        return Waiting(self.request.client, self.row_frames, self.request.silence_s / frame_s)
