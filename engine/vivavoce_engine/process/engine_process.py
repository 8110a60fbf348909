"""EngineProcess: an engine whose loop is a process of its own, started anew when it breaks. Torch-free.

A CUDA context that is lost, a step that never ends, or a process killed for its memory take no server with them.
One thread watches over the process, with an event loop of its own; callers are on others.

    AWAY ────► SERVING ────► AWAY           loaded; broke down, and is started again after a while
    ASLEEP ──► WAKING ──► SERVING ──► ASLEEP   on demand: asked for; loaded; nobody came for a while

Callers are refused while it is AWAY; what comes to one that wakes waits in its queue.
"""

import asyncio
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.admission import Backlog, LoopState
from vivavoce_engine.batching.faults import as_engine_error
from vivavoce_engine.batching.messages import AudioChunk, Command, Failed, Shutdown, Submit
from vivavoce_engine.batching.pending import Pending
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import EngineError, NotServing
from vivavoce_engine.front.front import EngineFront
from vivavoce_engine.front.stream import AudioStream, deliver
from vivavoce_engine.model import Model
from vivavoce_engine.process.child import STOP_LIMIT_S, Child, Fault
from vivavoce_engine.process.remote_voices import remote_voices
from vivavoce_engine.process.wire import (
    Answer,
    AnswerValue,
    Ask,
    Broken,
    Encode,
    GetPresets,
    Loaded,
    Logged,
    Order,
    Ping,
    Read,
    RemoteListener,
    Report,
)
from vivavoce_engine.request import VoiceReference
from vivavoce_engine.voices.store import VoiceStore

log = logging.getLogger(__name__)

TICK_S = 1.0
LOAD_LIMIT_S = 900.0
"""A model that is not there by then hangs."""
ANSWER_LIMIT_S = 120.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
"""Before a new start; doubled after each one that did not last."""
LASTING_S = 60.0
"""A process that served for so long is forgiven what was before."""
HOPELESS_STARTS = 5
"""So many starts in a row that did not last, and the engine has failed. It is still tried again."""


HANGS = Fault("hang", NotServing("the engine does not go on"))


class Phase(Enum):
    AWAY = auto()
    ASLEEP = auto()
    WAKING = auto()
    SERVING = auto()


class EngineProcess(EngineFront):
    """See above. `on_demand_s` None loads the model at the start, for good; else at the first request, until nobody
    has used it for so many seconds."""

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        store: VoiceStore | None = None,
        on_demand_s: float | None = None,
    ) -> None:
        super().__init__(model.info, model.text, config, remote_voices(model, self, store))
        self._model = model
        self._on_demand_s = on_demand_s
        self._unread_ahead = int(config.max_unread_s / model.info.frame_s) // 4
        """Frames that a reader takes before the process hears of it."""
        self._phase = Phase.AWAY
        self._life_number = 0
        """Of the process that serves, or will."""
        self._state = LoopState(self._admission.rates)
        self._pending: dict[int, Pending] = {}
        """Utterances that have not ended."""
        self._told_read: dict[int, int] = {}
        self._questions: dict[int, Future[AnswerValue]] = {}
        self._presets: Mapping[str, NDArray[np.float32]] | None = None
        self._used_s = time.monotonic()
        self._starts_in_vain = 0
        self._restarts: Counter[str] = Counter()
        # Of the watching thread:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._child: Child | None = None
        self._backlog: deque[object] = deque()
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._first_start: Future[None] = Future()
        self._thread = threading.Thread(target=self._watch, name="vivavoce-process", daemon=True)

    # ---- callers ----------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        return self._accepting and (self._on_demand_s is not None or self._phase is Phase.SERVING)

    @property
    def failed(self) -> bool:
        hopeless = self._starts_in_vain >= HOPELESS_STARTS and self._phase is Phase.AWAY
        return hopeless and self._on_demand_s is None

    @property
    def restarts(self) -> Counter[str]:
        return Counter(self._restarts)

    @property
    def processes(self) -> int:
        return int(self._phase is Phase.SERVING)

    @property
    def outstanding(self) -> int:
        """Utterances that have been accepted and have not ended."""
        return len(self._pending)

    @property
    def expected_wait_s(self) -> float:
        """Until a row is free for the next utterance."""
        return self.waiting().frames / self._admission.rates.frames_per_s

    @property
    def step_s(self) -> float:
        child = self._child
        return 0.0 if child is None else max(0.0, time.monotonic() - child.asked_s)

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        child = self._child
        return None if child is None else child.process.pid

    def start(self) -> None:
        self.begin()
        self.wait_until_started()

    def begin(self) -> None:
        """The first half of `start`, without waiting."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def wait_until_started(self) -> None:
        """The second half of `start`. Raises EngineError if the model cannot be loaded."""
        self._first_start.result()
        self._accepting = True

    def stop(self) -> None:
        self.drain()
        if self._thread.is_alive():
            self._call(self._stopping.set)
            self._thread.join()

    def encode(self, audio: NDArray[np.float32]) -> VoiceReference:
        """For Voices, on its own thread: waits for the process to do it. Raises EngineError if it cannot."""
        reference = self._ask(Encode(audio))
        assert isinstance(reference, VoiceReference)
        return reference

    def presets(self) -> Mapping[str, NDArray[np.float32]]:
        """The speakers' embeddings; waits for the process the first time. Raises EngineError if it is not there."""
        if self._presets is None:
            presets = self._ask(GetPresets())
            assert isinstance(presets, Mapping)
            self._presets = presets
        return self._presets

    def _ask(self, question: Encode | GetPresets) -> AnswerValue:
        number, answer = next(self._ids), Future[AnswerValue]()
        with self._gate:
            self._use()
            self._questions[number] = answer
            self._send(Ask(number, question))
        try:
            return answer.result(ANSWER_LIMIT_S)
        except TimeoutError as error:
            self._call(self._suspect)
            raise NotServing("the engine does not answer") from error
        finally:
            self._used_s = time.monotonic()
            self._questions.pop(number, None)

    def _accept(self, pending: Pending) -> None:
        self._use()
        self._pending[pending.utterance_id] = pending
        super()._accept(pending)

    def _use(self) -> None:
        """With the gate held: somebody needs the process. Raises NotServing if it is not to be had now."""
        if not self._accepting or self._phase is Phase.AWAY:
            raise NotServing("the engine is not serving")
        self._used_s = time.monotonic()
        if self._phase is Phase.ASLEEP:
            self._phase = Phase.WAKING
            self._call(self._wake.set)

    def _cancel(self, utterance_id: int) -> None:
        if utterance_id in self._pending:
            self._forget(utterance_id)
            super()._cancel(utterance_id)

    def _on_read(self, stream: AudioStream) -> None:
        # Not each piece: the loop would wake for all of them, and only wants to know who is far behind.
        told = self._told_read.get(stream.utterance_id, 0)
        if stream.frames_read - told > self._unread_ahead and stream.utterance_id in self._pending:
            self._told_read[stream.utterance_id] = stream.frames_read
            self._call(self._forward, self._life_number, Read(stream.utterance_id, stream.frames_read))

    def _loop_state(self) -> LoopState:
        return self._state

    def _send(self, command: Command | Ask) -> None:
        if isinstance(command, Submit):  # its stream stays here
            command = Submit(replace(command.pending, stream=RemoteListener(command.pending.utterance_id)))
        self._call(self._forward, self._life_number, command)

    def _call(self, function: Callable[..., object], *args: object) -> None:
        """Runs something on the watching thread, soon; never once that has ended."""
        assert self._loop is not None, "it was started"
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    # ---- watching thread --------------------------------------------------------------------------------------

    def _watch(self) -> None:
        loop = self._loop
        assert loop is not None, "it was started"
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._lives())

    async def _lives(self) -> None:
        """One process after the other."""
        self._enter(Phase.AWAY if self._on_demand_s is None else Phase.ASLEEP)
        if self._on_demand_s is not None:
            self._first_start.set_result(None)
        while not self._stopping.is_set():
            if self._phase is Phase.ASLEEP:
                await self._either(self._wake)
                self._wake.clear()
                continue
            fault = await self._life()
            if not self._first_start.done():
                self._first_start.set_exception(fault.error if fault else NotServing("the engine was stopped"))
                return
            if fault is not None and not self._stopping.is_set():
                await self._pause(fault)
        self._lose(NotServing("the engine was stopped"))

    async def _life(self) -> Fault | None:
        """Why the process is no more; None if it was told to go."""
        try:
            child = self._child = await Child.start()
        except OSError as error:
            return Fault("load", NotServing(f"no process can be started: {error}"))
        ticking = asyncio.create_task(self._tick(child))
        broken: Broken | None = None
        try:
            child.send(Order(self._model.load, self.config, logging.getLogger().getEffectiveLevel()))
            while broken is None:
                broken = self._on_message(child, await child.receive())
        except EOFError:
            pass
        except Exception as error:
            log.exception("a bug")
            child.kill(Fault("error", as_engine_error(error)))
        ticking.cancel()
        if not child.sent_away:
            self._enter(Phase.AWAY)
        status = await child.end()
        self._child = None
        if time.monotonic() - child.loaded_s > LASTING_S:
            self._starts_in_vain = 0
        return None if child.sent_away else child.fault(broken, status)

    def _on_message(self, child: Child, message: object) -> Broken | None:
        match message:
            case Report() if not child.sent_away:
                child.asked_s = math.inf
                self._on_report(message)
            case Answer(number=number, value=value):
                answer = self._questions.get(number)
                if answer is None:  # nobody waits for it any more
                    pass
                elif isinstance(value, EngineError):
                    answer.set_exception(value)
                else:
                    answer.set_result(value)
            case Logged(record=record):
                logging.getLogger(record.name).handle(record)
            case Loaded():
                self._on_loaded(child)
            case Broken():
                return message
        return None

    def _on_report(self, report: Report) -> None:
        self._state = report.state
        self._admission.rates = report.state.rates
        deliveries = []
        for utterance_id, event in report.events:
            pending = self._pending.get(utterance_id)
            if pending is None:  # it was cancelled meanwhile
                continue
            if not isinstance(event, AudioChunk):
                self._forget(utterance_id)
            deliveries.append((pending.stream, event))
        deliver(deliveries)

    def _on_loaded(self, child: Child) -> None:
        child.loaded_s = time.monotonic()
        log.info("%s is ready after %.1f s", self.info.name, child.loaded_s - child.started_s)
        self._enter(Phase.SERVING)
        while self._backlog:
            child.send(self._backlog.popleft())
        if not self._first_start.done():
            self._first_start.set_result(None)

    def _forward(self, life_number: int, message: object) -> None:
        """Hands on what was meant for this process: nothing for one that is no more."""
        if life_number != self._life_number:
            return
        if self._phase is Phase.SERVING and self._child is not None:
            self._child.send(message)
        else:
            self._backlog.append(message)

    def _forget(self, utterance_id: int) -> None:
        self._used_s = time.monotonic()
        self._pending.pop(utterance_id, None)
        self._told_read.pop(utterance_id, None)

    async def _tick(self, child: Child) -> None:
        """Looks after a process: does it live, is it needed, and does anybody wait in vain?"""
        limit_s = self.config.max_step_s
        while not child.sent_away:
            now_s = time.monotonic()
            if self._stopping.is_set() or self._is_idle(now_s):
                self._send_away(child)
            elif math.isinf(child.loaded_s):
                self._refuse_late(now_s)
                if now_s - child.started_s > LOAD_LIMIT_S:
                    child.kill(HANGS)
            elif math.isinf(child.asked_s):
                child.asked_s = now_s
                child.send(Ping())
            elif now_s - child.asked_s > limit_s:
                child.kill(HANGS)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), min(TICK_S, limit_s / 4))

    def _suspect(self) -> None:
        """A question found no answer: the process hangs, unless it has not been there for long."""
        if self._child is not None and time.monotonic() - self._child.loaded_s > ANSWER_LIMIT_S:
            self._child.kill(HANGS)

    def _send_away(self, child: Child) -> None:
        child.sent_away = True
        if math.isinf(child.loaded_s):
            child.process.kill()  # it listens to nobody while it loads
        child.send(Shutdown())
        asyncio.get_running_loop().call_later(STOP_LIMIT_S, child.process.kill)

    def _is_idle(self, now_s: float) -> bool:
        """Whether the process may go. From then on the next caller starts another."""
        with self._gate:
            if self._phase is not Phase.SERVING or self._on_demand_s is None or self._pending or self._questions:
                return False
            if now_s - self._used_s < self._on_demand_s:
                return False
            log.info("%s is unloaded: nobody used it for %g s", self.info.name, self._on_demand_s)
            self._reset(Phase.ASLEEP)
            return True

    def _refuse_late(self, now_s: float) -> None:
        """Utterances whose time to wait passes while the model loads."""
        late = [pending for pending in list(self._pending.values()) if pending.deadline_s <= now_s]
        refusal = Failed(self._admission.overloaded("the request's time to wait has passed"))
        for pending in late:
            self._cancel(pending.utterance_id)
        deliver([(pending.stream, refusal) for pending in late])

    async def _pause(self, fault: Fault) -> None:
        """After a fault: those who waited are told, and a while passes."""
        self._starts_in_vain += 1
        self._restarts[fault.reason] += 1
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._starts_in_vain - 1))
        log.error(
            "the engine of %s broke down (%s): %s; number %d of late; the next start is in %g s",
            self.info.name,
            fault.reason,
            fault.error,
            self._starts_in_vain,
            pause_s,
        )
        self._lose(_as_told(fault))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause_s)
        if self._on_demand_s is not None:
            self._enter(Phase.ASLEEP)

    def _lose(self, error: EngineError) -> None:
        """Everybody who was accepted is told; nobody is accepted from now on."""
        with self._gate:
            pending, questions = list(self._pending.values()), list(self._questions.values())
            self._reset(Phase.AWAY)
        deliver([(lost.stream, Failed(error)) for lost in pending])
        for question in questions:
            with suppress(Exception):  # it was answered at the last moment
                question.set_exception(error)

    def _enter(self, phase: Phase) -> None:
        with self._gate:
            self._phase = phase

    def _reset(self, phase: Phase) -> None:
        """With the gate held: nothing is left of the process that was."""
        self._phase = phase
        self._life_number += 1
        self._pending.clear()
        self._told_read.clear()
        self._backlog.clear()
        self._accepted = Backlog()
        self._state = LoopState(self._admission.rates)

    async def _either(self, event: asyncio.Event) -> None:
        """Until the event, or the end."""
        waiting = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._stopping.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for waiter in waiting:
            waiter.cancel()


def _as_told(fault: Fault) -> EngineError:
    """What callers hear. What the fault itself says is for the log."""
    if fault.reason == "load":
        return NotServing(f"the model could not be loaded: {fault.error}")
    return NotServing("the engine broke down and is started anew")
