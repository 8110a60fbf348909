"""An accepted utterance before it owns a row, and the text that goes with its frames."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from vivavoce_engine.batching.listener import Listener
from vivavoce_engine.request import SynthesisRequest
from vivavoce_engine.text.prompt import Prompt


class TrailingText:
    """The text ids that go with the frames: number k with frame k, then tts_pad for ever.

    While `complete` is false more may come, and a frame whose text is not there yet must wait. The last id of a
    complete text is tts_eos (or it was part of the prompt, and there are none).
    """

    def __init__(self, ids: Iterable[int], complete: bool, text_tokens: int) -> None:
        self.ids = list(ids)
        self.complete = complete
        self.text_tokens = text_tokens
        """Tokens of the whole text so far, those in the prompt included."""

    def append(self, ids: tuple[int, ...], complete: bool) -> None:
        """Adds text ids; the last of a complete text is tts_eos."""
        assert not self.complete, "nothing follows a complete text"
        self.ids += ids
        self.complete = complete
        self.text_tokens += len(ids) - complete

    def covers(self, frame: int) -> bool:
        """Whether it is known what goes with this frame."""
        return self.complete or frame < len(self.ids)


@dataclass(frozen=True, slots=True)
class Pending:
    """An accepted utterance that waits for a row. `trailing` alone changes, while text arrives.

    `frames` estimates the length of its speech; past `deadline_s` (time.monotonic, as `queued_s`) it no longer waits.
    """

    utterance_id: int
    request: SynthesisRequest
    prompt: Prompt
    seed: int
    max_frames: int
    stream: Listener
    trailing: TrailingText
    frames: float = 0.0
    deadline_s: float = math.inf
    queued_s: float = math.inf
