"""RemoteEngine: the callers' half of an engine whose loop is in another process. Torch-free.

It holds the utterances and questions that wait for the process. The way to the process is a Carrier, whose thread calls
the methods of `carrier.Owner` here.

Requests are added with the gate held, on any thread. Either side may remove them.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.admission import LOADING_RETRY_S
from vivavoce_engine.batching.line import Accepted, LoopState
from vivavoce_engine.batching.messages import AudioChunk, Command, Failed, Shutdown, Submit
from vivavoce_engine.batching.pending import Pending
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import EngineError, NotServing
from vivavoce_engine.front.front import EngineFront
from vivavoce_engine.front.stream import AudioStream, deliver
from vivavoce_engine.model import Model
from vivavoce_engine.process.carrier import ANSWER_TIMEOUT_S, Carrier, Owner, Phase
from vivavoce_engine.process.remote_voices import remote_voices
from vivavoce_engine.process.wire import (
    Answer,
    AnswerValue,
    Ask,
    Encode,
    FitTranscript,
    GetPresets,
    Loaded,
    Question,
    ReadProgress,
    Ready,
    RemoteSubmit,
    Report,
    SignOfLife,
)
from vivavoce_engine.request import VoiceReference
from vivavoce_engine.voices.store import VoiceStore

CarrierMaker = Callable[[threading.Lock, Owner], Carrier]


class RemoteEngine(EngineFront):
    """An engine in another process: `carrier` makes the way there, with the gate and the owner that it is given.

    `on_demand_s` None keeps the model loaded. Otherwise the first request loads it, and it is unloaded when nobody has
    used it for that many seconds.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        store: VoiceStore | None,
        on_demand_s: float | None,
        carrier: CarrierMaker,
    ) -> None:
        super().__init__(model.info, model.text, config, remote_voices(model, self, config, store))
        self._on_demand_s = on_demand_s
        self._read_report_frames = int(config.max_unread_s / model.info.frame_s) // 4
        """Frames that a reader takes between two ReadProgress messages."""
        self._state = LoopState(self._admission.rates)
        self._pending: dict[int, Pending] = {}
        """Accepted utterances that have not ended, by id."""
        self._reported_read_frames: dict[int, int] = {}
        self._questions: dict[int, Future[AnswerValue]] = {}
        self._presets: Mapping[str, NDArray[np.float32]] | None = None
        self._identity = ""
        self._last_used_s = time.monotonic()
        self._carrier = carrier(self._gate, self)

    # ---- callers ----------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def ready(self) -> bool:
        return self._accepting and (self._on_demand_s is not None or self.phase is Phase.SERVING)

    @property
    def failed(self) -> bool:
        return self._carrier.failed

    @property
    def restarts(self) -> Counter[str]:
        return self._carrier.restarts

    @property
    def phase(self) -> Phase:
        return self._carrier.phase

    @property
    def processes(self) -> int:
        return int(self._carrier.is_up)

    @property
    def outstanding(self) -> int:
        """Number of utterances accepted here that have not ended."""
        return len(self._pending)

    @property
    def load(self) -> int:
        """Number of utterances that wait or run, of all fronts."""
        state = self._state
        return state.running + self._accepted.waiting(state)

    @property
    def expected_wait_s(self) -> float:
        """Seconds until a row is free for the next utterance, by the rate measured so far."""
        return self.waiting().frames / self._admission.rates.frames_per_s

    @property
    def step_s(self) -> float:
        return self._carrier.silent_s

    @property
    def pid(self) -> int | None:
        """Process id, None while there is no process."""
        return self._carrier.pid

    def start(self) -> None:
        self.begin()
        self.wait_until_started()

    def begin(self) -> None:
        """First half of `start`: does not wait."""
        self._carrier.start()

    def wait_until_started(self) -> None:
        """Second half of `start`. Raises EngineError if the model cannot be loaded."""
        self._carrier.wait_until_started()
        self._accepting = True

    def stop(self) -> None:
        self.drain()
        self._carrier.stop()

    def encode(self, audio: NDArray[np.float32]) -> VoiceReference:
        """Encodes a recording, [samples] float32 mono at 24 kHz. Called on Voices' thread; waits for the process.

        Raises:
            EngineError: the process cannot encode it, or ended first.
        """
        reference = self._ask(Encode(audio))
        assert isinstance(reference, VoiceReference)
        return reference

    def fit(self, reference: VoiceReference) -> float | None:
        """The fit of a reference's codes and text, in nats a frame. Called and raises as `encode`."""
        fit = self._ask(FitTranscript(reference))
        assert fit is None or isinstance(fit, float)
        return fit

    def presets(self) -> Mapping[str, NDArray[np.float32]]:
        """The preset speakers' embeddings, [hidden] float32 each. The first call waits for the process.

        Raises:
            EngineError: there is no process to ask, or it ended first.
        """
        if self._presets is None:
            presets = self._ask(GetPresets())
            assert isinstance(presets, Mapping)
            self._presets = presets
        return self._presets

    def _ask(self, question: Question) -> AnswerValue:
        number, answer = next(self._ids), Future[AnswerValue]()
        with self._gate:
            self._require_process()
            self._questions[number] = answer
            self._carrier.send(Ask(number, question))
        try:
            return answer.result(ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            self._carrier.report_timeout()
            raise NotServing("the engine does not answer") from error
        finally:
            self._last_used_s = time.monotonic()
            self._questions.pop(number, None)

    def _accept(self, pending: Pending) -> None:
        assert pending.utterance_id not in self._pending
        self._require_process()
        self._pending[pending.utterance_id] = pending
        super()._accept(pending)

    def _require_process(self) -> None:
        """Checks, with the gate held, that a process serves or is waking. Raises NotServing otherwise."""
        if not self._accepting:
            raise NotServing("the engine is not serving")
        self._carrier.require()
        self._last_used_s = time.monotonic()

    def _cancel(self, utterance_id: int) -> None:
        if utterance_id in self._pending:
            self._forget(utterance_id)
            super()._cancel(utterance_id)

    def _on_read(self, stream: AudioStream) -> None:
        # Not at each piece: a message wakes the loop, which only has to know which readers are far behind.
        told = self._reported_read_frames.get(stream.utterance_id, 0)
        if stream.frames_read - told > self._read_report_frames and stream.utterance_id in self._pending:
            self._reported_read_frames[stream.utterance_id] = stream.frames_read
            self._carrier.send(ReadProgress(stream.utterance_id, stream.frames_read))

    def _loop_state(self) -> LoopState:
        return self._state

    def _send(self, command: Command) -> None:
        assert not isinstance(command, Shutdown), "another one ends the process"
        self._carrier.send(RemoteSubmit.of(command.pending) if isinstance(command, Submit) else command)

    def _forget(self, utterance_id: int) -> None:
        self._last_used_s = time.monotonic()
        self._pending.pop(utterance_id, None)
        self._reported_read_frames.pop(utterance_id, None)

    # ---- carrier's thread: see Owner ---------------------------------------------------------------------------

    def on_report(self, report: SignOfLife) -> None:
        assert isinstance(report, Report)
        self._state = report.state
        self._admission.rates = report.state.rates
        deliveries = []
        for utterance_id, event in report.events:
            pending = self._pending.get(utterance_id)
            if pending is None:  # cancelled while its event was on the way
                continue
            if not isinstance(event, AudioChunk):
                self._forget(utterance_id)
            deliveries.append((pending.stream, event))
        deliver(deliveries)

    def on_answer(self, answer: Answer) -> None:
        waiting = self._questions.get(answer.number)
        if waiting is None:  # its caller has timed out
            return
        if isinstance(answer.value, EngineError):
            waiting.set_exception(answer.value)
        else:
            waiting.set_result(answer.value)

    def on_loading(self, now_s: float) -> None:
        """Refuses the utterances whose deadline passes while the model loads."""
        late = [pending for pending in list(self._pending.values()) if pending.deadline_s <= now_s]
        refusal = Failed(self._admission.overloaded("the request's time to wait has passed", LOADING_RETRY_S))
        for pending in late:
            self._cancel(pending.utterance_id)
        deliver([(pending.stream, refusal) for pending in late])

    def on_loaded(self, loaded: Ready) -> None:
        assert isinstance(loaded, Loaded)
        self.config = loaded.config
        self._identity = loaded.identity

    def last_needed_s(self) -> float:
        assert self._gate.locked()
        return math.inf if self._pending or self._questions else self._last_used_s

    def on_gone(self, error: EngineError) -> None:
        assert self._gate.locked()
        lost, questions = list(self._pending.values()), list(self._questions.values())
        self._pending.clear()
        self._reported_read_frames.clear()
        self._accepted = Accepted()
        self._state = LoopState(self._admission.rates)
        deliver([(pending.stream, Failed(error)) for pending in lost])
        for question in questions:
            with suppress(InvalidStateError):  # already answered
                question.set_exception(error)
