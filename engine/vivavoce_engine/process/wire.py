"""Messages between a server and an engine process. `ipc/pipe.py` turns them into bytes.

Server → worker: LoadCommand first; then RemoteSubmit, other commands (messages.py), ReadProgress, Ask and Ping.
Worker → server: Loaded or Broken first; then Report and Answer; Broken last, if the worker can still send it; Logged at
any time. A worker and a front say the same to each other over a link of their own, without LoadCommand, Shutdown,
Broken and Logged. `host_wire.py` has the messages between a front and the worker's host.

Every message is a frozen dataclass and is pickled, so the two sides share no object. Some contents are not frozen
themselves: arrays, which nobody changes; the exceptions of Answer, Failed and Broken; Answer's dict of embeddings;
Logged's LogRecord; and LoadCommand's function, which is pickled by its name.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.line import LoopState
from vivavoce_engine.batching.listener import Listener
from vivavoce_engine.batching.messages import AppendText, Cancel, Shutdown, StreamEvent
from vivavoce_engine.batching.pending import Pending, TrailingText
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import EngineError
from vivavoce_engine.model import Parts
from vivavoce_engine.request import UtteranceOptions, VoiceReference
from vivavoce_engine.text.prompt import Prompt

Reason = Literal["error", "out_of_memory", "device", "hang", "killed", "load"]
"""Cause of a worker's end: an exception, memory, a lost CUDA context, a step without end, a signal or an unexpected
exit (`killed`), or a model that could not be loaded."""


class SignOfLife:
    """Base of the messages by which a process shows that it goes on: results, or the answer to a Ping."""

    __slots__ = ()


class Ready:
    """Base of the message that ends a process's start: from now on it serves."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class LoadCommand:
    """The first message: loads a model. `load` is pickled by its name; `log_level` is as in `logging`.

    At `address`, a path, the worker then listens for fronts. None if the server alone speaks through it.
    """

    load: Callable[[], Parts]
    config: EngineConfig
    log_level: int
    address: Path | None = None


@dataclass(frozen=True, slots=True)
class RemoteSubmit:
    """Submit in its frozen form: a Pending without its listener and its growing text, of which each side has its own.

    The text of a Pending that has just been accepted is its prompt's. `complete` says that no AppendText follows.
    """

    utterance_id: int
    request: UtteranceOptions
    prompt: Prompt
    seed: int
    max_frames: int
    complete: bool
    frames: float
    deadline_s: float
    queued_s: float

    @classmethod
    def of(cls, pending: Pending) -> "RemoteSubmit":
        assert tuple(pending.trailing.ids) == pending.prompt.trailing_ids, "no text has been appended yet"
        return cls(
            utterance_id=pending.utterance_id,
            request=pending.request,
            prompt=pending.prompt,
            seed=pending.seed,
            max_frames=pending.max_frames,
            complete=pending.trailing.complete,
            frames=pending.frames,
            deadline_s=pending.deadline_s,
            queued_s=pending.queued_s,
        )

    def pending(self, listener: Listener) -> Pending:
        """The utterance for the worker's loop, with the worker's own listener and number."""
        return Pending(
            utterance_id=listener.utterance_id,
            request=self.request,
            prompt=self.prompt,
            seed=self.seed,
            max_frames=self.max_frames,
            stream=listener,
            trailing=TrailingText(self.prompt.trailing_ids, self.complete, self.prompt.text_tokens, self.prompt.words),
            frames=self.frames,
            deadline_s=self.deadline_s,
            queued_s=self.queued_s,
        )


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """Frames of an utterance that its reader has taken since the beginning."""

    utterance_id: int
    frames: int


@dataclass(frozen=True, slots=True)
class Encode:
    """A recording to encode: `audio` [samples] float32 mono at 24 kHz. Answered by a VoiceReference."""

    audio: NDArray[np.float32]

    def __post_init__(self) -> None:
        assert self.audio.dtype == np.float32
        assert self.audio.ndim == 1


@dataclass(frozen=True, slots=True)
class FitTranscript:
    """A reference with codes and text. Answered by their fit (text/transcript.py), or None if it cannot be told."""

    reference: VoiceReference


@dataclass(frozen=True, slots=True)
class GetPresets:
    """Asks for the preset speakers' embeddings, [hidden] float32 each."""


Question = Encode | FitTranscript | GetPresets


@dataclass(frozen=True, slots=True)
class Ask:
    """A question. The worker answers one after the other, on a thread beside the loop."""

    number: int
    question: Question


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for a SignOfLife after the current step."""


@dataclass(frozen=True, slots=True)
class Loaded(Ready):
    """The model is loaded and warm, with these settings: numbers where LoadCommand's had `auto`.

    `identity` is that of SpeechEngine.
    """

    config: EngineConfig
    identity: str


@dataclass(frozen=True, slots=True)
class Report(SignOfLife):
    """Results of a step or of commands. Each of `events` comes with its utterance's id."""

    state: LoopState
    events: tuple[tuple[int, StreamEvent], ...]


AnswerValue = VoiceReference | Mapping[str, NDArray[np.float32]] | float | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the Ask of the same number: a value, or the error that prevented it."""

    number: int
    value: AnswerValue | EngineError


@dataclass(frozen=True, slots=True)
class Logged:
    """A record for the server's log."""

    record: logging.LogRecord


@dataclass(frozen=True, slots=True)
class Broken:
    """The worker ends because of this error."""

    reason: Reason
    error: EngineError


ToWorker = LoadCommand | RemoteSubmit | AppendText | Cancel | Shutdown | ReadProgress | Ask | Ping
ToServer = Loaded | Report | Answer | Logged | Broken
AnyToServer = Ready | SignOfLife | Answer | Logged | Broken
"""Messages of any process of this package, not of engines alone."""
