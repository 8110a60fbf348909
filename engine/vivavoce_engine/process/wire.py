"""What crosses between a server and the process of one of its engines (pipe.py has how).

Server → worker: Order first; then the loop's commands (messages.py), and Read, Ask, Ping.
Worker → server: Loaded or Broken; then Report, Answer, Logged; Broken last, if it can still say so.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.admission import LoopState
from vivavoce_engine.batching.messages import StreamEvent
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import EngineError
from vivavoce_engine.model import Parts
from vivavoce_engine.request import VoiceReference

Reason = Literal["error", "out_of_memory", "device", "hang", "killed", "load"]
"""Why a worker is no more: an exception; memory; a lost CUDA context; a step without end; a signal; or it never was."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is to be."""

    load: Callable[[], Parts]
    config: EngineConfig
    log_level: int


@dataclass(frozen=True, slots=True)
class Read:
    """A listener has taken so many frames of an utterance, all in all."""

    utterance_id: int
    frames: int


@dataclass(frozen=True, slots=True)
class Encode:
    """audio [samples] float32 mono at 24 kHz → VoiceReference."""

    audio: NDArray[np.float32]


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


class RemoteListener:
    """Stands for a stream of the server's: knows how much of it has been sent, and how much was read."""

    def __init__(self, utterance_id: int) -> None:
        self.utterance_id = utterance_id
        self.frames_read = 0
        self._frames_sent = 0

    @property
    def unread_frames(self) -> int:
        return self._frames_sent - self.frames_read

    def count_sent(self, frames: int) -> None:
        self._frames_sent += frames
