"""The engine's loop: drain commands → schedule → run → commit → deliver. Knows no tensors, no asyncio, no pipes.

It runs on one thread, of whoever holds it: an Engine of this process (engine.py), or a process of its own (worker.py).
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from vivavoce_engine.batching.admission import Admission, Rates
from vivavoce_engine.batching.messages import AppendText, Cancel, Command, Delivery, Failed, Finished, Shutdown, Submit
from vivavoce_engine.batching.pace import SPARE_STEPS, Pace
from vivavoce_engine.batching.runner import Outcome, Runner, Step
from vivavoce_engine.batching.scheduler import Plan, Scheduler
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import EndlessSpeech, EngineError
from vivavoce_engine.pages import pages_of


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
    have left the queue so far, by whatever way. `short_of_pages`: no row that is free helps who waits."""

    rates: Rates
    running: int = 0
    left_queue: int = 0
    left_queue_frames: float = 0.0
    steps: int = 0
    frames: int = 0
    short_of_pages: bool = False

    def rows_free(self, max_streams: int) -> int:
        """How many of the requests that wait are about to start."""
        return 0 if self.short_of_pages else max_streams - self.running


@dataclass(frozen=True, slots=True)
class Underway:
    """A step that has begun, and when it did."""

    step: Step
    started_s: float


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
        self._frame_s = runner.info.frame_s
        pages = config.kv_pages if runner.shares_pages else config.max_streams * pages_of(config.max_context)
        max_unread_frames = int(config.max_unread_s / self._frame_s)
        self._scheduler = Scheduler(config, max_unread_frames, pages, on_device=runner.steps_ahead > 0)
        self._admission = admission
        self._deliver = deliver
        self._now = now
        self._steps = 0
        self._frames = 0
        self._oldest_started_s = math.inf
        self._underway: deque[Underway] = deque()
        self._last_end_s = -math.inf
        self._pace = Pace()

    def state(self) -> LoopState:
        """May be asked by any thread."""
        scheduler = self._scheduler
        left, left_frames = scheduler.left_queue, scheduler.left_queue_frames
        return LoopState(
            *(self._admission.rates, scheduler.running, left, left_frames, self._steps, self._frames),
            short_of_pages=scheduler.short_of_pages,
        )

    @property
    def step_s(self) -> float:
        """How long the oldest step has been taking, 0 where there is none. May be asked by any thread."""
        started_s = self._oldest_started_s
        return 0.0 if math.isinf(started_s) else max(0.0, self._now() - started_s)

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
        """One turn: schedule → run → commit → deliver. False when there is nothing to do.

        Where a device works beside the host, the step that is committed is the one before the step that was begun, so
        that the device has work while the host has.
        """
        now_s = self._now()
        late = self._scheduler.expire(now_s)
        if late:
            refusal = Failed(self._admission.overloaded("the request's time to wait has passed"))
            self._deliver([(pending.stream, refusal) for pending in late])
        plan = self._scheduler.plan(partial(self._runs_dry, now_s, self._next_piece_s(now_s), self._pace.decoding_s))
        if plan:
            self._begin(plan, now_s)
        elif not self._underway:
            return self._make_room()
        if len(self._underway) > (self._runner.steps_ahead if plan else 0):
            self._end(self._underway[0])
        return True

    def _next_piece_s(self, now_s: float) -> float:
        """When a piece of one frame is heard that the next step decodes, and not the one that is planned now.

        Where a frame takes longer than it lasts, no piece is short enough, and short ones would make it worse: never.
        """
        step_s = self._pace.step_s(self._scheduler.running)
        if step_s >= self._frame_s:
            return -math.inf
        return now_s + (self._runner.steps_ahead + 2 + SPARE_STEPS) * step_s

    def _runs_dry(self, now_s: float, next_piece_s: float, decoding_s: float, sequence: Sequence) -> bool:
        """Whether its listener has played all that it has, and all that is underway, when such a piece is heard with
        the frames that wait and the next two."""
        underway_s = (sequence.frames_vocoded - sequence.frames_sent) * self._frame_s
        decoded_s = next_piece_s + (sequence.frames_waiting + 1) * decoding_s
        return max(sequence.playback.runs_dry_s, now_s) + underway_s < decoded_s

    def _make_room(self) -> bool:
        """Breaks off a row for which there are no pages, if nothing else will free some; False where that is not so."""
        sequence = self._scheduler.stuck()
        if sequence is None:
            return False
        self._scheduler.release(sequence)
        error = self._admission.overloaded("there is no room for more of this speech beside the others")
        self._deliver([(sequence.stream, Failed(error))])
        return True

    def fail_all(self, error: EngineError) -> None:
        """Empties queue and rows; their listeners hear of the error."""
        self._underway.clear()
        self._oldest_started_s = math.inf
        self._deliver([(pending.stream, Failed(error)) for pending in self._scheduler.drop_all()])

    def _begin(self, plan: Plan, now_s: float) -> None:
        for sequence in plan.start:
            sequence.queue_wait_s = max(0.0, now_s - sequence.pending.queued_s)
        self._oldest_started_s = min(self._oldest_started_s, now_s)
        step = self._runner.launch(plan)
        self._underway.append(Underway(step, now_s))
        failed = step.outcome.failed
        for sequence in plan.step:
            if sequence.utterance_id not in failed:
                sequence.add_frame()
        for sequence, frames in plan.vocode:
            if sequence.utterance_id not in failed:
                sequence.add_vocoded(frames)
        if failed:
            broken = [sequence for sequence in self._scheduler.running_sequences() if sequence.utterance_id in failed]
            for sequence in broken:
                self._scheduler.release(sequence)
            self._deliver([(sequence.stream, Failed(failed[sequence.utterance_id])) for sequence in broken])

    def _end(self, oldest: Underway) -> None:
        oldest.step.wait()
        self._underway.popleft()
        self._oldest_started_s = self._underway[0].started_s if self._underway else math.inf
        outcome = oldest.step.outcome
        end_s, rows = self._now(), len(outcome.plan.step)
        deliveries = self._commit(outcome, end_s)
        if rows:
            took_s = end_s - max(oldest.started_s, self._last_end_s)
            self._admission.rates = self._admission.rates.after_step(rows, took_s)
            self._pace.after_step(took_s, outcome)
        self._last_end_s = end_s
        self._steps += 1
        self._frames += rows
        self._deliver(deliveries)

    def _commit(self, outcome: Outcome, now_s: float) -> list[Delivery]:
        """Moves the host state on by what the runner did; returns what listeners are to hear."""
        deliveries: list[Delivery] = []
        for sequence in outcome.plan.step:
            if self._scheduler.is_running(sequence):
                sequence.know_frame(outcome.ended[sequence.utterance_id])
        for sequence, _ in outcome.plan.vocode:
            if not self._scheduler.is_running(sequence):
                continue
            chunk = sequence.send(outcome.audio[sequence.utterance_id])
            if chunk is not None:
                sequence.playback.hear(now_s, chunk.frames * self._frame_s)
                sequence.watch(chunk.codes)
                deliveries.append((sequence.stream, chunk))
        for sequence in self._scheduler.running_sequences():
            last = self._last_event(sequence)
            if last is not None:
                deliveries.append((sequence.stream, last))
                self._scheduler.release(sequence)
        return deliveries

    def _last_event(self, sequence: Sequence) -> Finished | Failed | None:
        """What ends the utterance now, if anything does."""
        if sequence.complete:
            finished = sequence.finished()
            if finished.reason == "stop":
                rates = self._admission.rates
                self._admission.rates = rates.after_utterance(finished.text_tokens, finished.frames)
            return finished
        if sequence.runs_away:
            return Failed(EndlessSpeech(f"the speech did not end by itself in {sequence.frames_known} frames"))
        return None
