"""The engine: one thread that turns accepted requests into streams of audio. Knows no tensors, no HTTP, no JSON."""

import asyncio
import itertools
import logging
import math
import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass, replace

from vivavoce_engine.admission import Admission, Load
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import EndlessSpeech, EngineError, NotServing, Rejected, SynthesisFailed
from vivavoce_engine.live import LiveUtterance
from vivavoce_engine.messages import AppendText, Cancel, Command, Failed, Finished, Shutdown, Submit
from vivavoce_engine.request import ModelInfo, SynthesisRequest
from vivavoce_engine.runner import Outcome, Runner
from vivavoce_engine.scheduler import Scheduler
from vivavoce_engine.sequence import Pending, Sequence, TrailingText
from vivavoce_engine.stream import AudioStream, Delivery, deliver
from vivavoce_engine.text import Prompt
from vivavoce_engine.voices import Voices

log = logging.getLogger(__name__)

SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for health pages, metrics and tests."""

    queued: int
    running: int
    steps: int
    frames: int
    step_s: float = 0.0
    """How long the present step has been taking, 0 between steps: a watchdog's sign of a device that hangs."""


class Engine:
    """Batches all running utterances frame by frame.

    `submit` is called from asyncio code; everything else happens on the engine's own thread:

        drain commands → schedule → run → commit → deliver
    """

    def __init__(self, runner: Runner, config: EngineConfig, voices: Voices | None = None) -> None:
        self.config = config
        self.voices = voices or Voices(runner.info)
        """Names, mixes and clones → what a request's `speaker` and `reference` are to be."""
        self._runner = runner
        self._scheduler = Scheduler(config, int(config.max_unread_s / runner.info.frame_s))
        self._inbox: deque[Command] = deque()
        self._wake = threading.Event()
        self._ids = itertools.count(1)
        self._accepting = False
        self._admission = Admission(config, runner.info.frame_s)
        self._gate = threading.Lock()
        """Held while a request is sent and when the thread ends: none is sent to a thread that has ended."""
        self._accepted = 0
        self._accepted_frames = 0.0
        self._steps = 0
        self._frames = 0
        self._step_started_s = math.inf
        self._failed = False
        self._thread = threading.Thread(target=self._loop, name="vivavoce-engine", daemon=True)

    @property
    def info(self) -> ModelInfo:
        return self._runner.info

    @property
    def ready(self) -> bool:
        """Whether `submit` may be called: true between `start` and `stop`, while the thread lives."""
        return self._accepting and self._thread.is_alive()

    @property
    def failed(self) -> bool:
        """Whether the thread died of an error; only a new engine helps."""
        return self._failed

    def stats(self) -> EngineStats:
        queued = self._accepted - self._scheduler.left_queue
        step_s = max(0.0, time.monotonic() - self._step_started_s)
        return EngineStats(queued, self._scheduler.running, self._steps, self._frames, step_s)

    def start(self) -> None:
        """Starts the thread; the runner is warm by then."""
        self._accepting = True
        self._thread.start()

    def drain(self) -> None:
        """Refuses new requests; what was accepted goes on."""
        self._accepting = False

    def stop(self) -> None:
        """Stops the thread. Utterances that have not ended fail with NotServing."""
        self.drain()
        if self._thread.is_alive():
            self._send(Shutdown())
            self._thread.join()

    def submit(self, request: SynthesisRequest) -> AudioStream:
        """Queues an utterance and returns its stream at once. Call it on the event loop that reads the stream.

        Raises:
            Rejected: the model cannot serve this request (names the field).
            Overloaded: the queue is full.
            NotServing: the engine is not running.
        """
        if not self.ready:
            raise NotServing("the engine is not serving")
        return self.enqueue(request, self._runner.text.prompt(request), self.new_stream())

    def open(self, request: SynthesisRequest) -> LiveUtterance:
        """An utterance whose text arrives later, in fragments; `request.text` is not used. Call it as `submit`.

        Raises:
            Rejected: the model cannot serve this request (names the field).
            NotServing: the engine is not running.
        """
        if not self.ready:
            raise NotServing("the engine is not serving")
        request = replace(request, streaming_text=True, end_after_text=True)
        return LiveUtterance(self, self._runner.text, request)

    def new_stream(self) -> AudioStream:
        """For an utterance that is not queued yet."""
        return AudioStream(next(self._ids), asyncio.get_running_loop(), self._cancel, self._wake.set)

    def enqueue(
        self, request: SynthesisRequest, prompt: Prompt, stream: AudioStream, complete: bool = True
    ) -> AudioStream:
        """Queues an utterance; more text may follow by `append_text` unless `complete`. Raises as `submit`."""
        max_frames = self._frame_limit(request, prompt)
        frames = self._admission.estimate_frames(prompt.text_tokens, max_frames)
        self._admission.check(self._waiting(), frames, request.max_wait_s)
        deadline_s = math.inf if request.max_wait_s is None else time.monotonic() + request.max_wait_s
        trailing = TrailingText(prompt.trailing_ids, complete, prompt.text_tokens)
        seed = secrets.randbits(SEED_BITS) if request.seed is None else request.seed
        pending = Pending(stream.utterance_id, request, prompt, seed, max_frames, stream, trailing, frames, deadline_s)
        with self._gate:
            if not self._accepting:
                raise NotServing("the engine has stopped")
            self._accepted += 1
            self._accepted_frames += frames
            self._send(Submit(pending))
        return stream

    def _waiting(self) -> Load:
        """What the next request has to wait for: nothing while there are rows for all that was accepted."""
        free_rows = self.config.max_streams - self._scheduler.running
        requests = self._accepted - self._scheduler.left_queue - free_rows
        if requests < 0:
            return Load(0, 0.0)
        return Load(requests, self._accepted_frames - self._scheduler.left_queue_frames)

    def append_text(self, utterance_id: int, ids: tuple[int, ...], complete: bool) -> None:
        """More text of a live utterance that has been queued."""
        self._send(AppendText(utterance_id, ids, complete))

    def _frame_limit(self, request: SynthesisRequest, prompt: Prompt) -> int:
        room = self.config.max_context - prompt.prefill_tokens
        if room <= len(prompt.trailing_ids):
            tokens = prompt.prefill_tokens + len(prompt.trailing_ids)
            raise Rejected("text", f"the text takes {tokens} of {self.config.max_context} positions")
        return min(room, request.max_frames or self.info.max_frames)

    def _cancel(self, utterance_id: int) -> None:
        self._send(Cancel(utterance_id))

    def _send(self, command: Command) -> None:
        self._inbox.append(command)
        self._wake.set()

    # ---- engine thread ----------------------------------------------------------------------------------------

    def _loop(self) -> None:
        failure: EngineError = NotServing("the engine was stopped")
        try:
            while self._drain_commands():
                if not self.step():
                    self._scheduler.check_integrity()
                    self._wait()
                self._wake.clear()
        except Exception as error:
            self._failed = True
            log.exception("the engine stopped")
            failure = SynthesisFailed(f"the engine stopped: {error}")
        with self._gate:
            self._accepting = False
        while self._inbox:  # what arrived since the last step
            self._drain_commands()
        deliver([(pending.stream, Failed(failure)) for pending in self._scheduler.drop_all()])

    def step(self) -> bool:
        """One turn: schedule → run → commit → deliver. False when there is nothing to do."""
        started_s = time.monotonic()
        late = self._scheduler.expire(started_s)
        if late:
            refusal = Failed(self._admission.overloaded("the request's time to wait has passed"))
            deliver([(pending.stream, refusal) for pending in late])
        plan = self._scheduler.plan()
        if not plan:
            return False
        self._step_started_s = started_s
        outcome = self._runner.run(plan)
        self._step_started_s = math.inf
        deliver(self._commit(outcome))
        if plan.step:
            self._admission.record_step(len(plan.step), time.monotonic() - started_s)
        self._steps += 1
        self._frames += len(plan.step)
        return True

    def _wait(self) -> None:
        """Until a command or a reader wakes the thread, or a request has waited too long."""
        deadline_s = self._scheduler.next_deadline_s
        self._wake.wait(None if math.isinf(deadline_s) else max(0.0, deadline_s - time.monotonic()))

    def _drain_commands(self) -> bool:
        """Applies what arrived since the last step; False when the engine is to stop."""
        while self._inbox:
            match self._inbox.popleft():
                case Submit(pending=pending):
                    self._scheduler.enqueue(pending)
                case AppendText(utterance_id=utterance_id, ids=ids, complete=complete):
                    self._scheduler.append_text(utterance_id, ids, complete)
                case Cancel(utterance_id=utterance_id):
                    self._scheduler.cancel(utterance_id)
                case Shutdown():
                    return False
        return True

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
                self._admission.record_utterance(finished.text_tokens, finished.frames)
            return finished
        if sequence.runs_away:
            return Failed(EndlessSpeech(f"the speech did not end by itself in {sequence.frames_made} frames"))
        return None
