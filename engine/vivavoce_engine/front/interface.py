"""SpeechEngine: all that a server needs of an engine, whether its loop is a thread, a process, or several."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vivavoce_engine.batching.admission import Load
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.front.live import LiveUtterance
from vivavoce_engine.front.stream import AudioStream
from vivavoce_engine.request import ModelInfo, SynthesisRequest
from vivavoce_engine.voices.registry import Voices


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for health pages, metrics and tests."""

    queued: int
    running: int
    steps: int
    frames: int
    step_s: float = 0.0
    """How long the engine has not been heard of while it should: the present step, 0 between steps."""


class SpeechEngine(ABC):
    """One model that speaks. `submit` and `open` are called from asyncio code."""

    def __init__(self, info: ModelInfo, config: EngineConfig, voices: Voices) -> None:
        self.info = info
        self.config = config
        self.voices = voices
        """Names, mixes and clones → what a request's `speaker` and `reference` are to be."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether `submit` may be called."""

    @property
    @abstractmethod
    def failed(self) -> bool:
        """Whether the engine broke down and does not seem to come back by itself."""

    @property
    @abstractmethod
    def restarts(self) -> Counter[str]:
        """Reason → how often the engine broke down and was to be started anew."""

    @property
    @abstractmethod
    def processes(self) -> int:
        """How many loops are up, each with the model in memory."""

    @abstractmethod
    def start(self) -> None:
        """Returns when the engine is ready. Raises EngineError if it cannot start."""

    @abstractmethod
    def drain(self) -> None:
        """Refuses new requests; what was accepted goes on."""

    @abstractmethod
    def stop(self) -> None:
        """Ends the loop. Utterances that have not ended fail with NotServing."""

    @abstractmethod
    def stats(self) -> EngineStats: ...

    @abstractmethod
    def check_room(self, max_wait_s: float | None) -> None:
        """For whoever has work to do before `submit`: refuses at once what that would refuse for any text.

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
    def open(self, request: SynthesisRequest) -> LiveUtterance:
        """An utterance whose text arrives later, in fragments; `request.text` is not used. Call it as `submit`.

        Raises:
            Rejected: the model cannot serve this request (names the field).
            NotServing: the engine is not running.
        """

    @abstractmethod
    def waiting(self) -> Load:
        """What the next request has to wait for: nothing while there are rows for all that was accepted."""

    @abstractmethod
    def share_queue(self, engines: "Sequence[SpeechEngine]") -> None:
        """The queue's limits count what waits for all of these, this one among them."""
