"""The seam between scheduling and computing: what an engine step asks of the models."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from vivavoce_engine.messages import AudioChunk
from vivavoce_engine.request import ModelInfo, SynthesisRequest
from vivavoce_engine.scheduler import Plan
from vivavoce_engine.text import Prompt


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a plan gave.

    `ended`: utterance id → whether the model ended its speech after this step's frame, for each of `plan.step`.
    `audio`: utterance id → the piece of speech, for each of `plan.vocode`.
    """

    plan: Plan
    ended: Mapping[int, bool]
    audio: Mapping[int, AudioChunk]


class PromptBuilder(Protocol):
    """Turns a request into token ids; called from any thread."""

    def prompt(self, request: SynthesisRequest) -> Prompt:
        """Raises Rejected, naming the request's field, if the model cannot speak it."""
        ...


class Runner(Protocol):
    """Runs plans. Called from the engine thread alone."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def text(self) -> PromptBuilder: ...

    def run(self, plan: Plan) -> Outcome:
        """Prefill, one frame a row, audio; rows outside the plan keep their state bit for bit."""
        ...
