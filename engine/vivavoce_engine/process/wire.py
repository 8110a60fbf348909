"""What crosses between a server and the process of one of its engines (pipe.py has how).

Server → worker: LoadCommand first; then RemoteSubmit, other commands (messages.py), ReadProgress, Ask and Ping.
Worker → server: Loaded or Broken; then Report, Answer, Logged; Broken last, if it can still say so.

Every message is a frozen dataclass, and pickled: the two sides share no object. Some hold an object that is
not frozen: LoadCommand a function, pickled by its name; Logged a LogRecord; Answer, Failed and Broken an exception.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.listener import Listener
from vivavoce_engine.batching.loop import LoopState
from vivavoce_engine.batching.messages import AppendText, Cancel, Shutdown, StreamEvent
from vivavoce_engine.batching.pending import Pending, TrailingText
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import EngineError
from vivavoce_engine.model import Parts
from vivavoce_engine.request import SynthesisRequest, VoiceReference
from vivavoce_engine.text.prompt import Prompt

Reason = Literal["error", "out_of_memory", "device", "hang", "killed", "load"]
"""Why a worker is no more: an exception; memory; a lost CUDA context; a step without end; a signal; or it never was."""


@dataclass(frozen=True, slots=True)
class LoadCommand:
    """What a worker is to be."""

    load: Callable[[], Parts]
    config: EngineConfig
    log_level: int


@dataclass(frozen=True, slots=True)
class RemoteSubmit:
    """Submit as it crosses: a Pending without its listener and its growing text, which each side has for itself.

    The text of a Pending that has just been accepted is its prompt's; `complete` says that no AppendText follows.
    """

    utterance_id: int
    request: SynthesisRequest
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
        assert listener.utterance_id == self.utterance_id
        return Pending(
            utterance_id=self.utterance_id,
            request=self.request,
            prompt=self.prompt,
            seed=self.seed,
            max_frames=self.max_frames,
            stream=listener,
            trailing=TrailingText(self.prompt.trailing_ids, self.complete, self.prompt.text_tokens),
            frames=self.frames,
            deadline_s=self.deadline_s,
            queued_s=self.queued_s,
        )


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """A listener has taken so many frames of an utterance, all in all."""

    utterance_id: int
    frames: int


@dataclass(frozen=True, slots=True)
class Encode:
    """audio [samples] float32 mono at 24 kHz → VoiceReference."""

    audio: NDArray[np.float32]

    def __post_init__(self) -> None:
        assert self.audio.dtype == np.float32
        assert self.audio.ndim == 1


@dataclass(frozen=True, slots=True)
class GetPresets:
    """→ the speakers' embeddings."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question, answered beside the loop, one after the other."""

    number: int
    question: Encode | GetPresets


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for a Report between two steps, as a sign of life."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model is there and warm."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a step, or of commands; each of `events` with the id of its utterance."""

    state: LoopState
    events: tuple[tuple[int, StreamEvent], ...]


AnswerValue = VoiceReference | Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Answer:
    number: int
    value: AnswerValue | EngineError


@dataclass(frozen=True, slots=True)
class Logged:
    """A line for the server's log."""

    record: logging.LogRecord


@dataclass(frozen=True, slots=True)
class Broken:
    """The worker cannot go on."""

    reason: Reason
    error: EngineError


ToWorker = LoadCommand | RemoteSubmit | AppendText | Cancel | Shutdown | ReadProgress | Ask | Ping
ToServer = Loaded | Report | Answer | Logged | Broken
