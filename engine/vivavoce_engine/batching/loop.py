"""The engine's loop: drain commands → schedule → run → commit → deliver. Knows no tensors, no asyncio, no pipes.

It runs on one thread: in this process for an Engine (front/thread.py), or in an engine's own process
(process/worker.py).
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from vivavoce_engine.batching.admission import Admission
from vivavoce_engine.batching.line import SOON_FRAMES, Line, LoopState
from vivavoce_engine.batching.messages import (
    AppendText,
    AudioChunk,
    Cancel,
    Command,
    Delivery,
    Failed,
    Finished,
    Shutdown,
    Submit,
)
from vivavoce_engine.batching.pace import StepDurations
from vivavoce_engine.batching.pending import Pending
from vivavoce_engine.batching.runner import Outcome, Runner, Step
from vivavoce_engine.batching.scheduler import Plan, Scheduler
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.batching.text_paths import TextPath, feed
from vivavoce_engine.batching.word_times import SpokenWords
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import EndlessSpeech, EngineError, Overloaded
from vivavoce_engine.pages import pages_of


class Inbox(Protocol):
    """The source of a loop's commands. Only the loop's thread uses it."""

    def take(self) -> Iterable[Command]:
        """The commands that have arrived, without waiting for more."""
        ...

    def wait(self, timeout_s: float | None) -> None:
        """Returns when something has arrived, or after `timeout_s`; None waits without a limit."""
        ...


@dataclass(frozen=True, slots=True)
class Underway:
    """A step that has begun, the time at which it did, and the seconds until `launch` returned."""

    step: Step
    started_s: float
    launch_s: float


class EngineLoop:
    """Batches all running utterances frame by frame. `deliver` gets the events of every step.

    `now` is the loop's only clock, in seconds. A simulation gives the loop a clock of its own.
    """

    def __init__(
        self,
        runner: Runner,
        config: EngineConfig,
        admission: Admission,
        deliver: Callable[[list[Delivery]], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._config = config
        self._frame_s = runner.info.frame_s
        self._capacity = capacity = runner.capacity
        pages = config.kv_pages if capacity.shares_pages else config.rows * pages_of(config.max_context)
        self._scheduler = Scheduler(config, int(config.max_unread_s / self._frame_s), pages, capacity)
        self._admission = admission
        self._deliver = deliver
        self._now = now
        self._steps = 0
        self._frames = 0
        self._oldest_started_s = math.inf
        self._underway: deque[Underway] = deque()
        self._last_end_s = -math.inf
        self._durations = StepDurations()

    def state(self) -> LoopState:
        """A snapshot for any thread, as for the only front."""
        scheduler = self._scheduler
        # Another thread may ask while a request leaves. It must not miss one, so the queue is read last.
        running, left_queue = scheduler.running, scheduler.left_queue
        queued = scheduler.queued()
        return LoopState(
            rates=self._admission.rates,
            running=running,
            left_queue=left_queue,
            queued=tuple(pending.utterance_id for pending in queued),
            busy=tuple(self._busy()) if queued else (),
            steps=self._steps,
            frames=self._frames,
            short_of_pages=scheduler.short_of_pages,
        )

    @property
    def step_s(self) -> float:
        """Time since the oldest running step began; 0 if no step runs. Any thread may ask."""
        started_s = self._oldest_started_s
        return 0.0 if math.isinf(started_s) else max(0.0, self._now() - started_s)

    def run(self, inbox: Inbox) -> None:
        """Runs until a Shutdown. Raises errors that are not the fault of one utterance."""
        while self.apply(inbox.take()):
            if not self.step():
                self._scheduler.check_integrity()
                deadline_s = self._scheduler.next_deadline_s
                inbox.wait(None if math.isinf(deadline_s) else max(0.0, deadline_s - self._now()))

    def apply(self, commands: Iterable[Command]) -> bool:
        """Carries commands out. Returns False if the loop is to end."""
        for command in commands:
            match command:
                case Submit(pending=pending):
                    self._scheduler.enqueue(pending)
                case AppendText(utterance_id=utterance_id, ids=ids, complete=complete, words=words):
                    self._scheduler.append_text(utterance_id, ids, complete, words)
                case Cancel(utterance_id=utterance_id):
                    self._scheduler.cancel(utterance_id)
                case Shutdown():
                    return False
        return True

    def step(self) -> bool:
        """One turn: schedule → run → commit → deliver. Returns False if there is nothing to do.

        Where a device works beside the host, this turn begins one step and commits the step before it. So the device
        has work while the host has.
        """
        now_s = self._now()
        late = self._scheduler.expire(now_s)
        if late:
            self._deliver([(pending.stream, Failed(self._too_late(pending))) for pending in late])
        running, capacity = self._scheduler.running, self._capacity
        plan = self._scheduler.plan(self._durations.moment(now_s, self._frame_s, running, capacity))
        if plan:
            self._begin(plan, now_s)
        elif not self._underway:
            return self._make_room()
        if not plan:
            self._end(self._underway[0])
        while self._underway and (self._is_full() or self._underway[0].step.is_done()):
            self._end(self._underway[0])
        if capacity.frames_at_once and plan.step:
            self._count_rate(len(plan.step), self._now() - now_s)
        return True

    def _is_full(self) -> bool:
        """True if the oldest step must end before another begins.

        Where frames are known at once, those of a whole piece may be made while one as long is decoded.
        """
        most = self._capacity.steps_ahead
        if self._capacity.frames_at_once:
            most = max(most, *(frames for _, frames in self._underway[0].step.outcome.plan.vocode), 0)
        return len(self._underway) > most

    def _busy(self) -> Iterator[tuple[str, float]]:
        """Client of each row in use, and the estimated seconds until the row is free.

        A row that waits for its listener or for text goes on at the pace of sound.
        """
        running = self._scheduler.running_sequences()
        frame_s = len(running) / self._admission.rates.frames_per_s
        for sequence in running:
            left = max(SOON_FRAMES, sequence.pending.row_frames - sequence.frames_made)
            is_slow = not sequence.trailing.complete or self._scheduler.rests(sequence)
            yield sequence.pending.request.client, left * max(frame_s, self._frame_s if is_slow else 0.0)

    def check(self, pending: Pending) -> None:
        """Refuses a request that finds no place in the queue as it is now, or would wait too long.

        A front has checked it before by an older account, and without the requests of other fronts. On the loop's
        thread.

        Raises:
            Overloaded: the request is refused.
        """
        scheduler, options = self._scheduler, pending.request
        if options.is_next or not scheduler.waits:
            return
        queued = tuple(each.waiting(self._frame_s) for each in scheduler.queued())
        free = 0 if scheduler.short_of_pages else self._config.rows - scheduler.running
        line = Line(queued, tuple(self._busy()), free, scheduler.running, self._admission.rates)
        self._admission.check(line, pending.waiting(self._frame_s), options.max_wait_s)

    def _too_late(self, late: Pending) -> Overloaded:
        """The refusal of a request that has waited in vain, with the time until another one has its turn."""
        queued = tuple(pending.waiting(self._frame_s) for pending in self._scheduler.queued())
        line = Line(queued, tuple(self._busy()), 0, self._scheduler.running, self._admission.rates)
        return self._admission.overloaded("the request's time to wait has passed", line.start_s(late.request.client))

    def _make_room(self) -> bool:
        """Breaks off one row if all rows wait for pages and nothing else will free some. Returns False otherwise."""
        sequence = self._scheduler.stuck()
        if sequence is None:
            return False
        self._scheduler.release(sequence)
        until_next_end_s = min((seconds for _, seconds in self._busy()), default=0.0)
        message = "there is no room for more of this speech beside the others"
        error = self._admission.overloaded(message, until_next_end_s)
        self._deliver([(sequence.stream, Failed(error))])
        return True

    def fail_all(self, error: EngineError) -> None:
        """Empties queue and rows, and delivers the error to their listeners."""
        self._underway.clear()
        self._oldest_started_s = math.inf
        self._deliver([(pending.stream, Failed(error)) for pending in self._scheduler.drop_all()])

    def _begin(self, plan: Plan, now_s: float) -> None:
        for sequence in plan.start:
            sequence.queue_wait_s = max(0.0, now_s - sequence.pending.queued_s)
        self._oldest_started_s = min(self._oldest_started_s, now_s)
        step = self._runner.launch(plan)
        self._underway.append(Underway(step, now_s, self._now() - now_s))
        plan.count_begun(step.outcome.failed)
        broken = self._release_failed(step.outcome)
        if broken:
            self._deliver(broken)
        if self._capacity.frames_at_once:
            self._commit_frames(step.outcome)

    def _release_failed(self, outcome: Outcome) -> list[Delivery]:
        """Frees the rows of utterances that a step could not go on with. Returns the events for their listeners."""
        failed = outcome.failed
        broken = [sequence for sequence in self._scheduler.running_sequences() if sequence.utterance_id in failed]
        for sequence in broken:
            self._scheduler.release(sequence)
        return [(sequence.stream, Failed(failed[sequence.utterance_id])) for sequence in broken]

    def _count_rate(self, frames: int, took_s: float) -> None:
        self._admission.rates = self._admission.rates.after_step(frames, took_s)

    def _end(self, oldest: Underway) -> None:
        oldest.step.wait()
        self._underway.popleft()
        self._oldest_started_s = self._underway[0].started_s if self._underway else math.inf
        outcome = oldest.step.outcome
        end_s, rows = self._now(), len(outcome.plan.step)
        deliveries = self._release_failed(outcome)
        if not self._capacity.frames_at_once:
            self._commit_frames(outcome)
        deliveries += self._commit_audio(outcome, end_s)
        if rows:
            took_s = end_s - max(oldest.started_s, self._last_end_s)
            if self._capacity.frames_at_once:  # the steps overlap
                took_s = oldest.launch_s + outcome.decoding_s
            else:
                self._count_rate(rows, took_s)
            self._durations.add(took_s, outcome.decoding_s, sum(frames for _, frames in outcome.plan.vocode))
        self._last_end_s = end_s
        self._steps += 1
        self._frames += rows
        self._deliver(deliveries)

    def _commit_frames(self, outcome: Outcome) -> None:
        """Updates the host state with the frames that a step has made."""
        self._follow(outcome)
        for sequence in outcome.plan.step:
            if self._scheduler.is_running(sequence):
                sequence.confirm_frame(outcome.ended[sequence.utterance_id])

    def _commit_audio(self, outcome: Outcome, now_s: float) -> list[Delivery]:
        """Updates the host state with the audio of a step. Returns the events for listeners."""
        deliveries: list[Delivery] = []
        for sequence, _ in outcome.plan.vocode:
            if not self._scheduler.is_running(sequence):
                continue
            chunk = sequence.send(outcome.audio[sequence.utterance_id], self._runner.info.samples_per_frame)
            if chunk is not None:
                sequence.playback.add_audio(now_s, chunk.frames * self._frame_s)
                sequence.count_repeats(chunk.codes)
                deliveries.append((sequence.stream, self._with_words(sequence, chunk)))
        for sequence in self._scheduler.running_sequences():
            last = self._last_event(sequence)
            if last is not None:
                deliveries.append((sequence.stream, last))
                self._scheduler.release(sequence)
        return deliveries

    def _follow(self, outcome: Outcome) -> None:
        """Takes the attention of a step, before its frames count as known."""
        for attention in outcome.attention:
            lines: list[int] = []
            paths: list[TextPath] = []
            tokens: list[int] = []
            for line, sequence in enumerate(attention.sequences):
                if not sequence.tells_words or sequence.is_void or not self._scheduler.is_running(sequence):
                    continue
                if sequence.words is None:
                    sequence.words = SpokenWords(TextPath(), self._frame_s, self._runner.info.alignment_offset_s)
                lines.append(line)
                paths.append(sequence.words.path)
                tokens.append(sequence.tokens_seen)
            if lines:
                all_of_them = len(lines) == len(attention.sequences)
                feed(paths, attention.scores if all_of_them else attention.scores[lines], tokens)

    def _with_words(self, sequence: Sequence, chunk: AudioChunk) -> AudioChunk:
        """The piece with the words whose times have become certain."""
        words, text = sequence.words, sequence.trailing
        if words is None:
            return chunk
        if sequence.complete:
            words.path.finish(text.text_tokens)
        return AudioChunk(chunk.pcm, chunk.codes, words.add(chunk.pcm, chunk.frames, text.words, sequence.end))

    def _last_event(self, sequence: Sequence) -> Finished | Failed | None:
        """The event that ends the utterance, if it has ended."""
        if sequence.complete:
            finished = sequence.finished()
            if finished.reason == "stop" and sequence.trailing.complete:
                rates = self._admission.rates
                self._admission.rates = rates.after_utterance(finished.text_tokens, finished.frames)
            return finished
        if sequence.runs_away:
            return Failed(EndlessSpeech(f"the speech did not end by itself in {sequence.frames_known} frames"))
        return None
