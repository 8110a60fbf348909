"""Watcher: starts a process, such as an engine's, watches over it, and starts it again when it breaks. Torch-free.

                   loaded           broke down                              loaded at the start
    always:     AWAY ────► SERVING ────► AWAY ─ ─ (after a pause)
                   require       loaded          idle
    on demand:  ASLEEP ────► WAKING ────► SERVING ────► ASLEEP              loaded when it is needed

An on-demand process that breaks is AWAY for the pause, and then ASLEEP. `require` refuses callers while the process is
AWAY. Messages for a process that is WAKING wait in the backlog.

The watching thread runs an event loop. It alone writes the fields, except that `require` may change the phase on a
caller's thread. Callers reach it through `_call`. The gate is the only lock: phase and generation change with it held,
so a caller who holds it can check the phase and send in one step.
"""

import asyncio
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from vivavoce_engine.batching.faults import as_engine_error
from vivavoce_engine.batching.messages import Shutdown
from vivavoce_engine.errors import EngineError, NoRoom, NotServing
from vivavoce_engine.process.child import EXIT_TIMEOUT_S, Child, Fault
from vivavoce_engine.process.wire import Answer, AnyToServer, Broken, Logged, Ping, Ready, SignOfLife

log = logging.getLogger(__name__)

TICK_S = 1.0
LOAD_TIMEOUT_S = 900.0
"""A process that takes longer to load its model is killed as hung."""
ANSWER_TIMEOUT_S = 120.0
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.5, 60.0
"""Pause before a restart. It doubles with each failure in a row."""
MAX_DOUBLINGS = 32
"""More would not fit a float after a day of failures, for example beside a card that others hold."""
STABLE_AFTER_S = 60.0
"""A process that has served for this long resets the count of failures."""
MAX_FAILURES = 5
"""Failures in a row after which the engine counts as failed. Restarts go on all the same."""


class Phase(Enum):
    """Phase of a Watcher: see the diagram above."""

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


@dataclass(frozen=True, slots=True)
class Program:
    """A process to keep running: the module that it runs, and the message that it gets first.

    `name` is that of its model, for the log. `what` is what it is, as messages call it. A process that shows no sign of
    life for `max_silent_s` is killed.
    """

    name: str
    what: str
    module: str
    load: Callable[[], object]
    max_silent_s: float


class Owner(Protocol):
    """The callers' half, for which a Watcher works. Its methods are called on the watching thread and must not wait."""

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


class Watcher:
    """Keeps one engine process running, one after the other if they break.

    `on_demand_s` None starts the process at once and keeps it. Otherwise the first `require` starts it, and it ends
    when it has been idle for that long. `gate` is the owner's lock, which both use.
    """

    def __init__(self, program: Program, on_demand_s: float | None, gate: threading.Lock, owner: Owner) -> None:
        assert on_demand_s is None or on_demand_s >= 0
        self._program = program
        self._hang_fault = Fault("hang", NotServing(f"the {program.what} does not go on"))
        self._on_demand_s = on_demand_s
        self._gate = gate
        self._owner = owner
        self._phase = Phase.AWAY
        self._generation = 0
        """Number of the process that serves or starts next. Messages to an earlier one are dropped."""
        self._failures = 0
        """Processes in a row that broke before STABLE_AFTER_S."""
        self._lacks_room = False
        """True if the last process found too little memory to load the model."""
        self._restarts: Counter[str] = Counter()
        self._child: Child | None = None
        self._backlog: deque[object] = deque()
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._first_start: Future[None] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._watch, name="vivavoce-process", daemon=True)

    # ---- from any thread --------------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def failed(self) -> bool:
        """True if only a new server may help. Where a device lacks room, none would: its other users must go first."""
        if self._lacks_room or self._on_demand_s is not None:
            return False
        return self._failures >= MAX_FAILURES and self._phase is Phase.AWAY

    @property
    def restarts(self) -> Counter[str]:
        """Reason → how often the process broke down."""
        return Counter(self._restarts)

    @property
    def silent_s(self) -> float:
        """Seconds since the Ping that has no answer yet, 0 without one."""
        child = self._child
        return 0.0 if child is None else max(0.0, time.monotonic() - child.pinged_s)

    @property
    def pid(self) -> int | None:
        """Process id, None while there is no process."""
        child = self._child
        return None if child is None else child.process.pid

    def start(self) -> None:
        """Starts the watching thread, and does not wait for the process."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def wait_until_started(self) -> None:
        """Returns when the first model is loaded, at once if on demand. Raises EngineError if it cannot be loaded."""
        self._first_start.result()

    def stop(self) -> None:
        """Ends the process, then the thread. All that waits fails with NotServing."""
        if self._thread.is_alive():
            self._call(self._stopping.set)
            self._thread.join()

    def require(self) -> None:
        """Prepares for `send`, with the gate held: wakes a process that is ASLEEP. Raises NotServing if it is AWAY."""
        assert self._gate.locked()
        if self._phase is Phase.AWAY:
            raise NotServing(f"the {self._program.what} is not serving")
        if self._phase is Phase.ASLEEP:
            self._set_phase(Phase.WAKING)
            self._call(self._wake.set)

    def send(self, message: object) -> None:
        """Sends a message to the current process, without waiting. Dropped if that process ends first."""
        self._call(self._forward, self._generation, message)

    def report_timeout(self) -> None:
        """Reports that a question had no answer in ANSWER_TIMEOUT_S. Kills a process loaded for longer than that."""
        self._call(self._kill_if_hung)

    def _call(self, function: Callable[..., object], *args: object) -> None:
        """Runs a function on the watching thread soon. Once that thread has ended, does nothing."""
        assert self._loop is not None, "it was started"
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    # ---- watching thread --------------------------------------------------------------------------------------

    def _watch(self) -> None:
        loop = self._loop
        assert loop is not None, "it was started"
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._run_processes())

    async def _run_processes(self) -> None:
        """Runs one process after another until `stop`."""
        self._enter(Phase.AWAY if self._on_demand_s is None else Phase.ASLEEP)
        if self._on_demand_s is not None:
            self._first_start.set_result(None)
        while not self._stopping.is_set():
            if self._phase is Phase.ASLEEP:
                await self._wait_for_wake_or_stop()
                continue
            fault = await self._run_process()
            if not self._first_start.done():
                self._first_start.set_exception(
                    fault.error if fault else NotServing(f"the {self._program.what} was stopped")
                )
                return
            if fault is not None and not self._stopping.is_set():
                await self._back_off(fault)
        self._fail_generation(self._stopped())

    def _stopped(self) -> NotServing:
        return NotServing(f"the {self._program.what} was stopped")

    async def _run_process(self) -> Fault | None:
        """Runs one process to its end. Returns its fault, None if it was told to end."""
        try:
            child = self._child = await Child.start(self._program.module, self._program.what)
        except OSError as error:
            return Fault("load", NotServing(f"no process can be started: {error}"))
        ticking = asyncio.create_task(self._tick(child))
        broken: Broken | None = None
        try:
            child.send(self._program.load())
            while broken is None:
                broken = self._on_message(child, await child.receive())
        except EOFError:
            pass
        except Exception as error:
            log.exception("a bug")
            child.kill(Fault("error", as_engine_error(error)))
        ticking.cancel()
        if not child.ending:
            self._enter(Phase.AWAY)
        status = await child.ensure_gone()
        self._child = None
        if time.monotonic() - child.loaded_s > STABLE_AFTER_S:
            self._failures = 0
        return None if child.ending else child.exit_fault(broken, status)

    def _on_message(self, child: Child, message: AnyToServer) -> Broken | None:
        match message:
            case SignOfLife() if not child.ending:
                child.pinged_s = math.inf
                self._owner.on_report(message)
            case Answer():
                self._owner.on_answer(message)
            case Logged(record=record):
                logging.getLogger(record.name).handle(record)
            case Ready():
                self._on_loaded(child, message)
            case Broken():
                return message
        return None

    def _on_loaded(self, child: Child, loaded: Ready) -> None:
        assert math.isinf(child.loaded_s), "a process loads one model, once"
        self._owner.on_loaded(loaded)
        child.loaded_s = time.monotonic()
        log.info("%s is ready after %.1f s", self._program.name, child.loaded_s - child.started_s)
        self._enter(Phase.SERVING)
        while self._backlog:
            child.send(self._backlog.popleft())
        if not self._first_start.done():
            self._first_start.set_result(None)

    def _forward(self, generation: int, message: object) -> None:
        assert generation <= self._generation
        if generation != self._generation:
            return
        if self._phase is Phase.SERVING and self._child is not None:
            self._child.send(message)
        else:
            self._backlog.append(message)

    async def _tick(self, child: Child) -> None:
        """Ends a process that is not needed, kills one that hangs, and pings the others."""
        limit_s = self._program.max_silent_s
        while not child.ending:
            now_s = time.monotonic()
            if self._stopping.is_set() or self._fall_asleep_if_idle(now_s):
                self._end(child)
            elif math.isinf(child.loaded_s):
                self._owner.on_loading(now_s)
                if now_s - child.started_s > LOAD_TIMEOUT_S:
                    child.kill(self._hang_fault)
            elif math.isinf(child.pinged_s):
                child.pinged_s = now_s
                child.send(Ping())
            elif now_s - child.pinged_s > limit_s:
                child.kill(self._hang_fault)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), min(TICK_S, limit_s / 4))

    def _kill_if_hung(self) -> None:
        if self._child is not None and time.monotonic() - self._child.loaded_s > ANSWER_TIMEOUT_S:
            self._child.kill(self._hang_fault)

    def _end(self, child: Child) -> None:
        child.ending = True
        if math.isinf(child.loaded_s):
            child.process.kill()  # a process that is loading reads no messages
        child.send(Shutdown())
        asyncio.get_running_loop().call_later(EXIT_TIMEOUT_S, child.process.kill)

    def _fall_asleep_if_idle(self, now_s: float) -> bool:
        """True if the process has been idle long enough to end. The next caller then starts another one."""
        with self._gate:
            if self._phase is not Phase.SERVING or self._on_demand_s is None:
                return False
            if now_s - self._owner.last_needed_s() < self._on_demand_s:
                return False
            log.info("%s is unloaded: nobody used it for %g s", self._program.name, self._on_demand_s)
            self._reset(Phase.ASLEEP, NotServing("the model was unloaded"))
            return True

    async def _back_off(self, fault: Fault) -> None:
        """Counts and logs a fault, fails all requests, and pauses."""
        self._failures += 1
        self._lacks_room = isinstance(fault.error, NoRoom)
        self._restarts[fault.reason] += 1
        pause_s = backoff_s(self._failures)
        log.error(
            "the %s of %s broke down (%s): %s; number %d of late; the next start is in %g s",
            self._program.what,
            self._program.name,
            fault.reason,
            # The message of an unexpected error may quote a text.
            str(fault.error).partition(":")[0] if fault.reason == "error" else fault.error,
            self._failures,
            pause_s,
        )
        self._fail_generation(_error_for_callers(fault, self._program.what))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause_s)
        if self._on_demand_s is not None:
            self._enter(Phase.ASLEEP)

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

    async def _wait_for_wake_or_stop(self) -> None:
        waiting = [asyncio.ensure_future(event.wait()) for event in (self._wake, self._stopping)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for waiter in waiting:
            waiter.cancel()
        self._wake.clear()


def backoff_s(failures: int) -> float:
    """Pause before a restart after this many failures in a row, at least one."""
    return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failures - 1, MAX_DOUBLINGS))


def _error_for_callers(fault: Fault, what: str) -> EngineError:
    """The error for callers. The fault's own error is for the log."""
    if fault.reason == "load":
        return NotServing(f"the model could not be loaded: {fault.error}")
    return NotServing(f"the {what} broke down and is being restarted")
