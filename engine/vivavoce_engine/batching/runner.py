"""The seam between scheduling and computing: a Plan goes in, a Step comes out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.capacity import HOST, Capacity
from vivavoce_engine.batching.messages import AudioChunk
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.batching.sequence import Sequence as Utterance
from vivavoce_engine.errors import EngineError, Rejected
from vivavoce_engine.request import ModelInfo, SynthesisRequest, UtteranceOptions
from vivavoce_engine.text.answer import AnswerFrontend
from vivavoce_engine.text.prompt import Prompt
from vivavoce_engine.text.words import TextWord


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of the alignment's head to the text, in a step of some `sequences`.

    `scores` [sequences, 32] float32 are raw attention scores (q.k / sqrt(head_dim), before the softmax) for the text
    tokens at the talker's positions from `sequence.window_at` on, as it was when the plan began. The query is that of
    the step, from which code 0 of the next frame is drawn. A position behind the query's own has -inf. The line of a
    sequence that did not ask for the times of words has no meaning.
    """

    sequences: Sequence[Utterance]
    scores: NDArray[np.float32]


@dataclass(slots=True)
class Outcome:
    """The result of a plan, by utterance id.

    `ended`: for each of `plan.step`, True if the model ended its speech after this step's frame, or in its place where
    the talker reads first (Prompt).
    `audio`: for each of `plan.vocode`, the piece of speech.
    `failed`: the error of an utterance that cannot go on; the other two may lack it.
    `decoding_s`: time that a CPU took for `audio`; 0 where a device decodes beside the frames.
    `attention`: that of each of `plan.step` that asked for the times of words.
    """

    plan: Plan
    ended: dict[int, bool]
    audio: dict[int, AudioChunk]
    failed: dict[int, EngineError]
    decoding_s: float = 0.0
    attention: list[Attention] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Step:
    """A plan that runs. `outcome.failed` is known at once, and grows at most until `wait` has returned.

    The rest of the outcome is known then. Where `Capacity.frames_at_once`, all but the audio is known at once too.
    """

    outcome: Outcome
    wait: Callable[[], None]
    is_done: Callable[[], bool] = lambda: False
    """True if `wait` will return at once. A step that cannot tell is waited for when its turn has come."""


class TextCommitter(Protocol):
    """Turns fragments of one text into ids that later text cannot change."""

    def append(self, text: str, word_ends: bool = False) -> list[int]:
        """Takes a fragment. `word_ends` says that its last word is complete: no letter, digit or mark follows it."""
        ...

    def close(self) -> list[int]: ...

    def take_words(self, complete: bool) -> list[TextWord]:
        """The words that have become certain since the last call, if they were asked for; all of a `complete` text."""
        ...


class PromptBuilder(Protocol):
    """Turns requests into token ids. Any thread may call it."""

    def prompt(self, request: SynthesisRequest) -> Prompt:
        """The prompt of a complete request. Raises Rejected, naming the field, if the model cannot speak it."""
        ...

    def live_text(self, word_times: bool = False) -> TextCommitter:
        """A committer for one text that arrives in fragments. `word_times` asks for its words too."""
        ...

    def tokens_to_start(self, options: UtteranceOptions) -> int:
        """Number of text tokens that `build` needs of an incomplete text."""
        ...

    def build(self, options: UtteranceOptions, text: Sequence[int], complete: bool) -> Prompt:
        """The prompt for text ids; more ids follow unless it is `complete`. Raises Rejected as `prompt` does."""
        ...

    @property
    def end_of_text_id(self) -> int:
        """The trailing id that ends a live text."""
        ...


Frontend = PromptBuilder | AnswerFrontend
"""The way from a model's requests to token ids: from texts, or from the answers of its thinker."""


def builder_of(text: Frontend) -> PromptBuilder:
    """The builder of a model that speaks texts. Raises Rejected if the model speaks answers alone."""
    if isinstance(text, AnswerFrontend):
        raise Rejected("model", "this model speaks the answers of its own thinker, and no other text")
    return text


class Runner(Protocol):
    """Runs plans. Only the engine's thread calls it."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def text(self) -> Frontend: ...

    @property
    def capacity(self) -> Capacity:
        """Limits of the machine that it runs on. Constant."""
        ...

    def launch(self, plan: Plan) -> Step:
        """Begins prefill, one frame a row, and audio. Rows outside the plan keep their state bit for bit."""
        ...


class ImmediateRunner(ABC):
    """A runner on a host: `launch` does all the work before it returns."""

    capacity = HOST

    @abstractmethod
    def run(self, plan: Plan) -> Outcome:
        """Does prefill, one frame a row, and audio. Rows outside the plan keep their state bit for bit."""

    def launch(self, plan: Plan) -> Step:
        return Step(self.run(plan), lambda: None)
