"""The seam between scheduling and computing: what an engine step asks of the models."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from vivavoce_engine.batching.messages import AudioChunk
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.errors import EngineError
from vivavoce_engine.request import ModelInfo, SynthesisRequest
from vivavoce_engine.text.prompt import Prompt


@dataclass(slots=True)
class Outcome:
    """What a plan gave.

    `ended`: utterance id → whether the model ended its speech after this step's frame, for each of `plan.step`.
    `audio`: utterance id → the piece of speech, for each of `plan.vocode`.
    `failed`: utterance id → why it cannot go on; it may be missing from the other two.
    `decoding_s`: for how long everybody's next frame waited for `audio`; 0 where a device decodes beside it.
    """

    plan: Plan
    ended: dict[int, bool]
    audio: dict[int, AudioChunk]
    failed: dict[int, EngineError]
    decoding_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """A plan that is being run. Of its outcome `failed` is known at once, and all of it when `wait` has returned."""

    outcome: Outcome
    wait: Callable[[], None]


class TextCommitter(Protocol):
    """Fragments of text → ids that later text cannot change."""

    def append(self, text: str) -> list[int]: ...

    def close(self) -> list[int]: ...


class PromptBuilder(Protocol):
    """Turns a request into token ids; called from any thread."""

    def prompt(self, request: SynthesisRequest) -> Prompt:
        """Raises Rejected, naming the request's field, if the model cannot speak it."""
        ...

    def live_text(self) -> TextCommitter:
        """For one text that arrives in fragments."""
        ...

    def tokens_to_start(self, request: SynthesisRequest) -> int:
        """Text tokens that `build` needs of a text that is not complete."""
        ...

    def build(self, request: SynthesisRequest, text: Sequence[int], complete: bool) -> Prompt:
        """The prompt for text ids of which more follow unless `complete`. Raises Rejected as `prompt` does."""
        ...

    @property
    def end_of_text_id(self) -> int:
        """The trailing id that ends a live text."""
        ...


class Runner(Protocol):
    """Runs plans. Called from the engine thread alone."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def text(self) -> PromptBuilder: ...

    @property
    def steps_ahead(self) -> int:
        """How many steps may be begun before the first of them is waited for: 0 where `launch` does all the work, 1
        where a device works beside the host. Whether a frame was the last of its speech is known that much later."""
        ...

    @property
    def shares_pages(self) -> bool:
        """Whether its rows share pages of a KV cache; otherwise each has room for a whole context of its own."""
        ...

    def launch(self, plan: Plan) -> Step:
        """Begins prefill, one frame a row, audio; rows outside the plan keep their state bit for bit."""
        ...


class ImmediateRunner(ABC):
    """A runner that does its work when it is asked to. It is for a host, whose memory is taken only when it is first
    written to: a whole context a row costs nothing before it is used."""

    steps_ahead = 0
    shares_pages = False

    @abstractmethod
    def run(self, plan: Plan) -> Outcome:
        """Prefill, one frame a row, audio; rows outside the plan keep their state bit for bit."""

    def launch(self, plan: Plan) -> Step:
        return Step(self.run(plan), lambda: None)
