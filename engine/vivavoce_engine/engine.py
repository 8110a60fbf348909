"""The engine: one thread that turns accepted requests into streams of audio. Knows no tensors, no HTTP, no JSON."""

import asyncio
import itertools
import logging
import secrets
import threading
from collections import deque
from dataclasses import dataclass

from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import EngineError, NotServing, Overloaded, Rejected, SynthesisFailed
from vivavoce_engine.messages import Cancel, Command, Failed, Shutdown, Submit
from vivavoce_engine.request import ModelInfo, SynthesisRequest
from vivavoce_engine.runner import Outcome, Runner
from vivavoce_engine.scheduler import Scheduler
from vivavoce_engine.sequence import Pending
from vivavoce_engine.stream import AudioStream, Delivery, deliver

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0
SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for health pages, metrics and tests."""

    queued: int
    running: int
    steps: int
    frames: int


class Engine:
    """Batches all running utterances frame by frame.

    `submit` is called from asyncio code; everything else happens on the engine's own thread:

        drain commands → schedule → run → commit → deliver
    """

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        self.config = config
        self._runner = runner
        self._scheduler = Scheduler(config, int(config.max_unread_s / runner.info.frame_s))
        self._inbox: deque[Command] = deque()
        self._wake = threading.Event()
        self._ids = itertools.count(1)
        self._accepting = False
        self._accepted = 0
        self._steps = 0
        self._frames = 0
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
        return EngineStats(
            self._accepted - self._scheduler.left_queue, self._scheduler.running, self._steps, self._frames
        )

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
        prompt = self._runner.text.prompt(request)
        max_frames = self._frame_limit(request, prompt.prefill_tokens)
        if self._accepted - self._scheduler.left_queue >= self.config.max_queue:
            raise Overloaded(f"{self.config.max_queue} requests are waiting already", RETRY_AFTER_S)
        stream = AudioStream(next(self._ids), asyncio.get_running_loop(), self._cancel, self._wake.set)
        seed = secrets.randbits(SEED_BITS) if request.seed is None else request.seed
        self._accepted += 1
        self._send(Submit(Pending(stream.utterance_id, request, prompt, seed, max_frames, stream)))
        return stream

    def _frame_limit(self, request: SynthesisRequest, prefill_tokens: int) -> int:
        room = self.config.max_context - prefill_tokens
        if room <= 0:
            raise Rejected("text", f"the text takes {prefill_tokens} of {self.config.max_context} positions")
        return min(room, request.max_frames or self.info.max_frames)

    def _cancel(self, utterance_id: int) -> None:
        self._send(Cancel(utterance_id))

    def _send(self, command: Command) -> None:
        self._inbox.append(command)
        self._wake.set()

    # ---- engine thread ----------------------------------------------------------------------------------------

    def _loop(self) -> None:
        try:
            while self._drain_commands():
                if not self.step():
                    self._scheduler.check_integrity()
                    self._wake.wait()
                self._wake.clear()
        except Exception as error:
            self._failed = True
            log.exception("the engine stopped")
            self._fail_all(SynthesisFailed(f"the engine stopped: {error}"))
        else:
            self._fail_all(NotServing("the engine was stopped"))
        finally:
            self._accepting = False

    def step(self) -> bool:
        """One turn: schedule → run → commit → deliver. False when there is nothing to do."""
        plan = self._scheduler.plan()
        if not plan:
            return False
        outcome = self._runner.run(plan)
        deliver(self._commit(outcome))
        self._steps += 1
        self._frames += len(plan.step)
        return True

    def _drain_commands(self) -> bool:
        """Applies what arrived since the last step; False when the engine is to stop."""
        while self._inbox:
            match self._inbox.popleft():
                case Submit(pending=pending):
                    self._scheduler.enqueue(pending)
                case Cancel(utterance_id=utterance_id):
                    self._scheduler.cancel(utterance_id)
                case Shutdown():
                    return False
        return True

    def _commit(self, outcome: Outcome) -> list[Delivery]:
        """Moves the host state on by what the runner did; returns what listeners are to hear."""
        deliveries: list[Delivery] = []
        for sequence in outcome.plan.step:
            sequence.add_frame(outcome.ended[sequence.utterance_id])
        for sequence, frames in outcome.plan.vocode:
            sequence.add_vocoded(frames)
            deliveries.append((sequence.stream, outcome.audio[sequence.utterance_id]))
        for sequence in self._scheduler.running_sequences():
            if sequence.complete:
                deliveries.append((sequence.stream, sequence.finished()))
                self._scheduler.release(sequence)
        return deliveries

    def _fail_all(self, error: EngineError) -> None:
        deliver([(pending.stream, Failed(error)) for pending in self._scheduler.drop_all()])
