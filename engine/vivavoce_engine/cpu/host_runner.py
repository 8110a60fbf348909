"""The shared part of both runners of a CPU: the stages of a plan, and the settings that an utterance gives its row."""

import time
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from vivavoce_engine.batching.isolation import isolated
from vivavoce_engine.batching.runner import ImmediateRunner, Outcome
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.request import SamplingParams

INT32_MAX = 2**31 - 1


class HostRunner(ImmediateRunner):
    """Runs a plan's stages in turn. Each stage changes a row's state last, when nothing can fail any more."""

    def run(self, plan: Plan) -> Outcome:
        """Does prefill, one frame a row, and audio. Rows outside the plan keep their state bit for bit."""
        outcome = Outcome(plan, {}, {}, {})
        calls: defaultdict[int, list[Sequence]] = defaultdict(list)
        for sequence, frames in plan.vocode:
            calls[frames].append(sequence)
        isolated(self._start, plan.start, outcome)
        isolated(self._step, plan.step, outcome)
        started_s = time.monotonic()
        for frames, sequences in calls.items():
            isolated(partial(self._vocode, frames), sequences, outcome)
        outcome.decoding_s = time.monotonic() - started_s
        return outcome

    @abstractmethod
    def _start(self, sequences: SequenceOf[Sequence], outcome: Outcome) -> None:
        """Sets the rows up and runs their prompts."""

    @abstractmethod
    def _step(self, sequences: SequenceOf[Sequence], outcome: Outcome) -> None:
        """Completes one frame of each row, and records which rows end their speech after it."""

    @abstractmethod
    def _vocode(self, frames: int, sequences: SequenceOf[Sequence], outcome: Outcome) -> None:
        """Decodes the next `frames` waiting frames of each row."""


class Values(Protocol):
    """A tensor or an array by row."""

    def __setitem__(self, place: Any, value: Any, /) -> None: ...  # noqa: ANN401 (as torch's and numpy's)


class SamplingRows(Protocol):
    """Sampling parameters by row."""

    def set(self, row: int, params: SamplingParams) -> None: ...


@dataclass(frozen=True, slots=True)
class RowSettings:
    """Settings that an utterance gives its row, in a runner's tables. `as_ids` turns a list into what they take."""

    seed: Values
    trailing: Values
    """[rows, ids]: text ids that are fed with the frames."""
    trailing_count: Values
    min_frames: Values
    """Index of the first frame in whose place the speech may end."""
    seen: Values
    """[rows, codes]: true for each code 0 that was drawn before."""
    talker_sampling: SamplingRows
    predictor_sampling: SamplingRows
    as_ids: Callable[[SequenceOf[int]], Any]
    sent: dict[int, int]
    """Row → its text ids that the table has."""

    def begin(self, sequence: Sequence) -> None:
        """Makes a row new for an utterance."""
        row, pending = sequence.row, sequence.pending
        self.seed[row] = pending.seed
        self.sent[row] = 0
        self.trailing_count[row] = 0
        self.min_frames[row] = pending.prompt.min_frames
        self.seen[row] = False
        given = pending.prompt.conditioning
        if given is not None and given.codes is not None and given.own_frames:
            self.seen[row, self.as_ids(given.codes[-given.own_frames :, 0].tolist())] = True
        self.talker_sampling.set(row, pending.request.sampling.talker)
        self.predictor_sampling.set(row, pending.request.sampling.predictor)

    def send_text(self, sequence: Sequence) -> None:
        """Copies the text ids that arrived since the last step into the row's table."""
        row, ids, sent = sequence.row, sequence.trailing.ids, self.sent[sequence.row]
        if sent < len(ids):
            self.trailing[row, sent : len(ids)] = self.as_ids(ids[sent:])
            self.trailing_count[row] = self.sent[row] = len(ids)
        if sequence.pending.request.end_after_text:
            self.min_frames[row] = min(sequence.min_frames, INT32_MAX)
