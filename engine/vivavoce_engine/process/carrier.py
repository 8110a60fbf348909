"""Carrier: the way to a process, and the thread that keeps it. Torch-free.

    always:     AWAY ────► SERVING ────► AWAY
    on demand:  ASLEEP ────► WAKING ────► SERVING ────► ASLEEP         (and AWAY, from anywhere, until it is ASLEEP)

Messages go to the process that serves. Those for a process that is WAKING wait in the backlog, and those for a process
that has ended are dropped. `require` refuses callers while the process is AWAY.

The thread runs an event loop. It alone writes the fields, except that `require` may change the phase on a caller's
thread. Callers reach it through `call`. The gate is the only lock: phase and generation change with it held, so a
caller who holds it can check the phase and send in one step.
"""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from enum import Enum, auto
from typing import Protocol

from vivavoce_engine.errors import EngineError, NotServing
from vivavoce_engine.process.connection import Connection
from vivavoce_engine.process.wire import Answer, Ready, SignOfLife

TICK_S = 1.0
ANSWER_TIMEOUT_S = 120.0


class Phase(Enum):
    """Phase of a Carrier: see the diagram above."""

    AWAY = auto()
    ASLEEP = auto()
    WAKING = auto()
    SERVING = auto()


NEXT_PHASES = {
    Phase.AWAY: {Phase.AWAY, Phase.ASLEEP, Phase.SERVING},
    Phase.ASLEEP: {Phase.WAKING, Phase.AWAY},
    Phase.WAKING: {Phase.SERVING, Phase.AWAY},
    Phase.SERVING: {Phase.ASLEEP, Phase.AWAY},
}


class Owner(Protocol):
    """The callers' half, for which a Carrier works. Its methods are called on the thread and must not wait."""

    def on_report(self, report: SignOfLife) -> None: ...

    def on_answer(self, answer: Answer) -> None: ...

    def on_loading(self, now_s: float) -> None:
        """Called at each tick while the model is being loaded."""

    def on_loaded(self, loaded: Ready) -> None:
        """The model is loaded, as this message tells. It may differ from one process to the next."""
        ...

    def last_needed_s(self) -> float:
        """Time (time.monotonic) of the last use, infinite while a request waits for the process. With the gate held."""
        ...

    def on_gone(self, error: EngineError) -> None:
        """The process has ended. All requests that wait for it fail with `error`. With the gate held."""


class Carrier(ABC):
    """Base of Watcher, which starts the process itself, and Link, which reaches one that another process keeps.

    `what` is what the process is, as messages call it. `on_demand_s` None keeps the process. Otherwise the first
    `require` wakes it, and it sleeps when it has been idle for that long. `gate` is the owner's lock, which both use.
    """

    def __init__(self, what: str, on_demand_s: float | None, gate: threading.Lock, owner: Owner) -> None:
        assert on_demand_s is None or on_demand_s >= 0
        self._what = what
        self._on_demand_s = on_demand_s
        self._gate = gate
        self._owner = owner
        self._phase = Phase.AWAY
        self._generation = 0
        """Number of the process that serves or starts next. Messages to an earlier one are dropped."""
        self._backlog: deque[object] = deque()
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._first_start: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._keep, name="vivavoce-process", daemon=True)

    # ---- for subclasses ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def failed(self) -> bool:
        """True if only a new server may help."""

    @property
    @abstractmethod
    def restarts(self) -> Counter[str]:
        """Reason → how often the process broke down."""

    @property
    @abstractmethod
    def is_up(self) -> bool:
        """True if the process is up, with the model in memory."""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Process id, None while there is no process."""

    @abstractmethod
    def report_timeout(self) -> None:
        """Reports that a question had no answer in ANSWER_TIMEOUT_S."""

    @property
    @abstractmethod
    def _connection(self) -> Connection | None:
        """The way to the present process, None without one."""

    @abstractmethod
    async def _run(self) -> None:
        """Keeps the way open until `_stopping` is set. On the thread."""

    # ---- from any thread --------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def silent_s(self) -> float:
        """Seconds since the Ping that has no answer yet, 0 without one."""
        connection = self._connection
        return 0.0 if connection is None else max(0.0, time.monotonic() - connection.pinged_s)

    def start(self) -> None:
        """Starts the thread, and does not wait for the process."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def wait_until_started(self) -> None:
        """Returns when the first start is over, at once if on demand. Raises EngineError if it failed."""
        self._first_start.result()

    def stop(self) -> None:
        """Ends the way to the process, and the thread. All that waits fails with NotServing."""
        if self._thread.is_alive():
            self.call(self._stopping.set)
            self._thread.join()

    def require(self) -> None:
        """Prepares for `send`, with the gate held: wakes a process that is ASLEEP. Raises NotServing if it is AWAY."""
        assert self._gate.locked()
        if self._phase is Phase.AWAY:
            raise NotServing(f"the {self._what} is not serving")
        if self._phase is Phase.ASLEEP:
            self._set_phase(Phase.WAKING)
            self.call(self._wake.set)

    def send(self, message: object) -> None:
        """Sends a message to the current process, without waiting. Dropped if that process ends first."""
        self.call(self._forward, self._generation, message)

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Runs a function on the thread soon. Once that thread has ended, does nothing."""
        assert self._loop is not None, "it was started"
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    # ---- on the thread ----------------------------------------------------------------------------------------

    def _keep(self) -> None:
        loop = self._loop
        assert loop is not None, "it was started"
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._run())

    def _forward(self, generation: int, message: object) -> None:
        assert generation <= self._generation
        if generation != self._generation:
            return
        connection = self._connection
        if self._phase is Phase.SERVING and connection is not None:
            connection.send(message)
        else:
            self._backlog.append(message)

    def _serve(self, connection: Connection, loaded: Ready) -> None:
        """The process is ready: it gets what has waited for it."""
        self._owner.on_loaded(loaded)
        self._enter(Phase.SERVING)
        while self._backlog:
            connection.send(self._backlog.popleft())
        if not self._first_start.done():
            self._first_start.set_result(None)

    def _fall_asleep_if_idle(self, now_s: float) -> bool:
        """True if the process has been idle long enough. The next caller then wakes it."""
        with self._gate:
            if self._phase is not Phase.SERVING or self._on_demand_s is None:
                return False
            if now_s - self._owner.last_needed_s() < self._on_demand_s:
                return False
            self._reset(Phase.ASLEEP, NotServing("the model was unloaded"))
            return True

    async def _pause(self, seconds: float) -> None:
        """Returns after this time, or at `stop`."""
        with suppress(TimeoutError):  # wait_for of Python 3.11 loses a cancellation that comes as it ends
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _enter(self, phase: Phase) -> None:
        with self._gate:
            self._set_phase(phase)

    def _fail_generation(self, error: EngineError) -> None:
        with self._gate:
            self._reset(Phase.AWAY, error)

    def _reset(self, phase: Phase, error: EngineError) -> None:
        """Ends a generation, with the gate held: drops its messages and fails its requests."""
        self._set_phase(phase)
        self._generation += 1
        self._backlog.clear()
        self._owner.on_gone(error)

    def _set_phase(self, phase: Phase) -> None:
        assert self._gate.locked()
        assert phase in NEXT_PHASES[self._phase], f"{self._phase.name} → {phase.name}"
        self._phase = phase

    def _stopped(self) -> NotServing:
        return NotServing(f"the {self._what} was stopped")
