"""SpeechEngine: the interface of an engine, whether its loop is a thread, a process, or several processes."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vivavoce_engine.batching.line import Backlog, Line
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.front.answer import SpokenAnswer
from vivavoce_engine.front.live import LiveUtterance
from vivavoce_engine.front.stream import AudioStream
from vivavoce_engine.request import ModelInfo, SynthesisRequest, ThinkerPrompt, UtteranceOptions
from vivavoce_engine.voices.registry import Voices


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for health pages, metrics and tests."""

    queued: int
    running: int
    steps: int
    frames: int
    step_s: float = 0.0
    """Time since the engine was last heard of while a step is due; 0 between steps."""


class SpeechEngine(ABC):
    """One model that speaks. Call `submit` and `open` from asyncio code."""

    def __init__(self, info: ModelInfo, config: EngineConfig, voices: Voices) -> None:
        self.info = info
        self.config = config
        self.voices = voices
        """Turns names, mixes and recordings into a request's `speaker` and `reference`."""

    @property
    def rows(self) -> int:
        """Utterances that it can run at the same time. Until a card's memory has settled `auto`, an estimate."""
        return self.config.rows

    @property
    def identity(self) -> str:
        """Digest of all that decides the samples of a seeded request beside the request: weights, code, arithmetic.

        Empty if it is not known, or if one seed may give other samples under another load.
        """
        return ""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """True if `submit` may be called."""

    @property
    @abstractmethod
    def failed(self) -> bool:
        """True if the engine broke down and is not expected to recover by itself."""

    @property
    @abstractmethod
    def restarts(self) -> Counter[str]:
        """Number of breakdowns that led to a restart, by reason."""

    @property
    @abstractmethod
    def processes(self) -> int:
        """Number of loops that run, each with the model in memory."""

    @abstractmethod
    def start(self) -> None:
        """Starts the engine and returns when it is ready. Raises EngineError if it cannot start."""

    @abstractmethod
    def drain(self) -> None:
        """Refuses new requests from now on; accepted ones go on."""

    @abstractmethod
    def stop(self) -> None:
        """Ends the loop. Utterances that have not ended fail with NotServing."""

    @abstractmethod
    def stats(self) -> EngineStats: ...

    @abstractmethod
    def check_room(self, max_wait_s: float | None) -> None:
        """Refuses at once if `submit` would refuse any text, for callers with work to do before `submit`.

        Raises:
            Overloaded: the queue is full, or the wait longer than `max_wait_s`.
            NotServing: the engine is not running.
        """

    @abstractmethod
    def submit(self, request: SynthesisRequest) -> AudioStream:
        """Queues an utterance and returns its stream at once. Call it on the event loop that reads the stream.

        Raises:
            Rejected: the model cannot serve this request (names the field).
            Overloaded: the queue is full.
            NotServing: the engine is not running.
        """

    @abstractmethod
    def open(self, options: UtteranceOptions) -> LiveUtterance:
        """An utterance whose text arrives later, in fragments. Call it as `submit`.

        Raises:
            Rejected: the model cannot serve this request (names the field).
            NotServing: the engine is not running.
        """

    @abstractmethod
    def open_answer(self, options: UtteranceOptions, prompt: ThinkerPrompt) -> SpokenAnswer:
        """Queues the answer of a thinker, whose ids arrive later, and returns at once. Call it as `submit`.

        `prompt` is what the thinker has read. It runs before the answer's first id is there. The text is fed with the
        frames, whatever `options.streaming_text` says.

        Raises:
            Rejected: the model cannot speak this answer (names the field: an option, `prompt`, or `model`).
            Overloaded: the queue is full.
            NotServing: the engine is not running.
        """

    @abstractmethod
    def lines(self, but: "SpeechEngine | None" = None) -> "Sequence[Line]":
        """The queue of each of its loops, without that of the engine `but`."""

    def waiting(self) -> Backlog:
        """The requests that find no row free."""
        return Backlog.of(request for line in self.lines() for request in line.waiting)

    @abstractmethod
    def share_queue(self, engines: "Sequence[SpeechEngine]") -> None:
        """Makes the queue's limits count the backlog of all `engines`, of which this is one."""
