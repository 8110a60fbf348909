"""EngineProcess: an engine whose loop is a process of its own. Torch-free.

A lost CUDA context, a step that never ends, or a process killed for its memory leaves the server running. This is the
callers' half: it holds the utterances and questions that wait for the process. The process itself belongs to a
`Watcher`, whose thread calls the methods of `watcher.Owner` here.

Requests are added with the gate held, on any thread. Either side may remove them.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Mapping
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
from vivavoce_engine.process.remote_voices import remote_voices
from vivavoce_engine.process.watcher import ANSWER_TIMEOUT_S, Phase, Program, Watcher
from vivavoce_engine.process.wire import (
    Answer,
    AnswerValue,
    Ask,
    Encode,
    FitTranscript,
    GetPresets,
    LoadCommand,
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

log = logging.getLogger(__name__)


def engine_program(model: Model, config: EngineConfig) -> Program:
    """The process of an engine."""

    def load() -> LoadCommand:
        return LoadCommand(model.load, config, log.getEffectiveLevel())

    return Program(model.info.name, "engine", "vivavoce_engine.process.worker", load, config.max_step_s)


class EngineProcess(EngineFront):
    """An engine in a process of its own, which is restarted when it breaks.

    `on_demand_s` None loads the model at the start and keeps it. Otherwise the first request loads it, and it is
    unloaded when nobody has used it for that many seconds.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        store: VoiceStore | None = None,
        on_demand_s: float | None = None,
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
        self._watcher = Watcher(engine_program(model, config), on_demand_s, self._gate, self)

    # ---- callers ----------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def ready(self) -> bool:
        return self._accepting and (self._on_demand_s is not None or self.phase is Phase.SERVING)

    @property
    def failed(self) -> bool:
        return self._watcher.failed

    @property
    def restarts(self) -> Counter[str]:
        return self._watcher.restarts

    @property
    def phase(self) -> Phase:
        return self._watcher.phase

    @property
    def processes(self) -> int:
        return int(self.phase is Phase.SERVING)

    @property
    def outstanding(self) -> int:
        """Number of accepted utterances that have not ended."""
        return len(self._pending)

    @property
    def expected_wait_s(self) -> float:
        """Seconds until a row is free for the next utterance, by the rate measured so far."""
        return self.waiting().frames / self._admission.rates.frames_per_s

    @property
    def step_s(self) -> float:
        return self._watcher.silent_s

    @property
    def pid(self) -> int | None:
        """Process id, None while there is no process."""
        return self._watcher.pid

    def start(self) -> None:
        self.begin()
        self.wait_until_started()

    def begin(self) -> None:
        """First half of `start`: does not wait."""
        self._watcher.start()

    def wait_until_started(self) -> None:
        """Second half of `start`. Raises EngineError if the model cannot be loaded."""
        self._watcher.wait_until_started()
        self._accepting = True

    def stop(self) -> None:
        self.drain()
        self._watcher.stop()

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
            self._watcher.send(Ask(number, question))
        try:
            return answer.result(ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            self._watcher.report_timeout()
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
        self._watcher.require()
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
            self._watcher.send(ReadProgress(stream.utterance_id, stream.frames_read))

    def _loop_state(self) -> LoopState:
        return self._state

    def _send(self, command: Command) -> None:
        assert not isinstance(command, Shutdown), "the watcher ends the process"
        self._watcher.send(RemoteSubmit.of(command.pending) if isinstance(command, Submit) else command)

    def _forget(self, utterance_id: int) -> None:
        self._last_used_s = time.monotonic()
        self._pending.pop(utterance_id, None)
        self._reported_read_frames.pop(utterance_id, None)

    # ---- watching thread: see Owner ---------------------------------------------------------------------------

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
