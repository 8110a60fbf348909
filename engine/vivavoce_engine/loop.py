"""The engine's loop: drain commands → schedule → run → commit → deliver. Knows no tensors, no asyncio, no pipes.

It runs on one thread, of whoever holds it: an Engine of this process (engine.py), or a process of its own (worker.py).
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from vivavoce_engine.admission import Admission, Rates
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import EndlessSpeech, EngineError
from vivavoce_engine.messages import AppendText, Cancel, Command, Failed, Finished, Shutdown, Submit
from vivavoce_engine.runner import Outcome, Runner
from vivavoce_engine.scheduler import Scheduler
from vivavoce_engine.sequence import Sequence
from vivavoce_engine.stream import Delivery


class Inbox(Protocol):
    """Where a loop's commands come from; used by the loop's thread alone."""

    def take(self) -> Iterable[Command]:
        """What has arrived, without waiting for more."""
        ...

    def wait(self, timeout_s: float | None) -> None:
        """Returns when something has arrived, or after so long."""
        ...


@dataclass(frozen=True, slots=True)
class LoopState:
    """What a loop tells of itself. `left_queue` and `left_queue_frames`: requests, and their estimated frames, that
    have left the queue so far, by whatever way."""

    rates: Rates
    running: int = 0
    left_queue: int = 0
    left_queue_frames: float = 0.0
    steps: int = 0
    frames: int = 0


class EngineLoop:
    """Batches all running utterances frame by frame. `deliver` gets what listeners are to hear, after every step.
    The loop has no other clock than `now`: a simulation (simulation.py) gives it its own."""

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        admission: Admission,
        deliver: Callable[[list[Delivery]], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._scheduler = Scheduler(config, int(config.max_unread_s / runner.info.frame_s))
        self._admission = admission
        self._deliver = deliver
        self._now = now
        self._steps = 0
        self._frames = 0
        self._step_started_s = math.inf

    def state(self) -> LoopState:
        """May be asked by any thread."""
        scheduler = self._scheduler
        left, left_frames = scheduler.left_queue, scheduler.left_queue_frames
        return LoopState(self._admission.rates, scheduler.running, left, left_frames, self._steps, self._frames)

    @property
    def step_s(self) -> float:
        """How long the present step has been taking, 0 between steps. May be asked by any thread."""
        return max(0.0, self._now() - self._step_started_s)

    def run(self, inbox: Inbox) -> None:
        """Returns when it is told to; raises what is not the fault of one utterance."""
        while self.apply(inbox.take()):
            if not self.step():
                self._scheduler.check_integrity()
                deadline_s = self._scheduler.next_deadline_s
                inbox.wait(None if math.isinf(deadline_s) else max(0.0, deadline_s - self._now()))

    def apply(self, commands: Iterable[Command]) -> bool:
        """False when the loop is to end."""
        for command in commands:
            match command:
                case Submit(pending=pending):
                    self._scheduler.enqueue(pending)
                case AppendText(utterance_id=utterance_id, ids=ids, complete=complete):
                    self._scheduler.append_text(utterance_id, ids, complete)
                case Cancel(utterance_id=utterance_id):
                    self._scheduler.cancel(utterance_id)
                case Shutdown():
                    return False
        return True

    def step(self) -> bool:
        """One turn: schedule → run → commit → deliver. False when there is nothing to do."""
        started_s = self._now()
        late = self._scheduler.expire(started_s)
        if late:
            refusal = Failed(self._admission.overloaded("the request's time to wait has passed"))
            self._deliver([(pending.stream, refusal) for pending in late])
        plan = self._scheduler.plan()
        if not plan:
            return False
        for sequence in plan.start:
            sequence.queue_wait_s = max(0.0, started_s - sequence.pending.queued_s)
        self._step_started_s = started_s
        outcome = self._runner.run(plan)
        self._step_started_s = math.inf
        deliveries = self._commit(outcome)
        if plan.step:
            self._admission.rates = self._admission.rates.after_step(len(plan.step), self._now() - started_s)
        self._steps += 1
        self._frames += len(plan.step)
        self._deliver(deliveries)
        return True

    def fail_all(self, error: EngineError) -> None:
        """Empties queue and rows; their listeners hear of the error."""
        self._step_started_s = math.inf
        self._deliver([(pending.stream, Failed(error)) for pending in self._scheduler.drop_all()])

    def _commit(self, outcome: Outcome) -> list[Delivery]:
        """Moves the host state on by what the runner did; returns what listeners are to hear."""
        deliveries: list[Delivery] = []
        for sequence in outcome.plan.step:
            if sequence.utterance_id not in outcome.failed:
                sequence.add_frame(outcome.ended[sequence.utterance_id])
        for sequence, frames in outcome.plan.vocode:
            if sequence.utterance_id not in outcome.failed:
                chunk = outcome.audio[sequence.utterance_id]
                sequence.add_vocoded(frames)
                sequence.watch(chunk.codes)
                deliveries.append((sequence.stream, chunk))
        for sequence in self._scheduler.running_sequences():
            last = self._last_event(sequence, outcome)
            if last is not None:
                deliveries.append((sequence.stream, last))
                self._scheduler.release(sequence)
        return deliveries

    def _last_event(self, sequence: Sequence, outcome: Outcome) -> Finished | Failed | None:
        """What ends the utterance now, if anything does."""
        if sequence.utterance_id in outcome.failed:
            return Failed(outcome.failed[sequence.utterance_id])
        if sequence.complete:
            finished = sequence.finished()
            if finished.reason == "stop":
                rates = self._admission.rates
                self._admission.rates = rates.after_utterance(finished.text_tokens, finished.frames)
            return finished
        if sequence.runs_away:
            return Failed(EndlessSpeech(f"the speech did not end by itself in {sequence.frames_made} frames"))
        return None
