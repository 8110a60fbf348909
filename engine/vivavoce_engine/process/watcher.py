"""Watcher: starts a process, such as an engine's, watches over it, and starts it again when it breaks. Torch-free.

                   loaded           broke down                              loaded at the start
    always:     AWAY ────► SERVING ────► AWAY ─ ─ (after a pause)
                   require       loaded          idle
    on demand:  ASLEEP ────► WAKING ────► SERVING ────► ASLEEP              loaded when it is needed

An on-demand process that breaks is AWAY for the pause, and then ASLEEP. `carrier.py` has the phases and the thread.
"""

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from vivavoce_engine.batching.faults import as_engine_error
from vivavoce_engine.batching.messages import Shutdown
from vivavoce_engine.errors import EngineError, NoRoom, NotServing
from vivavoce_engine.process.carrier import ANSWER_TIMEOUT_S, TICK_S, Carrier, Owner, Phase
from vivavoce_engine.process.child import EXIT_TIMEOUT_S, Child, Fault
from vivavoce_engine.process.connection import Connection
from vivavoce_engine.process.wire import Answer, AnyToServer, Broken, Logged, Ping, Ready, SignOfLife

log = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 900.0
"""A process that takes longer to load its model is killed as hung."""
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.5, 60.0
"""Pause before a restart. It doubles with each failure in a row."""
MAX_DOUBLINGS = 32
"""More would not fit a float after a day of failures, for example beside a card that others hold."""
STABLE_AFTER_S = 60.0
"""A process that has served for this long resets the count of failures."""
MAX_FAILURES = 5
"""Failures in a row after which the engine counts as failed. Restarts go on all the same."""


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


class Watcher(Carrier):
    """Keeps one process running, one after the other if they break.

    `on_demand_s` None starts the process at once and keeps it. Otherwise the first `require` starts it, and it ends
    when it has been idle for that long. `on_phase` is called after each change of the phase, with the gate held.
    """

    def __init__(
        self,
        program: Program,
        on_demand_s: float | None,
        gate: threading.Lock,
        owner: Owner,
        on_phase: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(program.what, on_demand_s, gate, owner)
        self._program = program
        self._on_phase = on_phase
        self._hang_fault = Fault("hang", NotServing(f"the {program.what} does not go on"))
        self._failures = 0
        """Processes in a row that broke before STABLE_AFTER_S."""
        self._lacks_room = False
        """True if the last process found too little memory to load the model."""
        self._restarts: Counter[str] = Counter()
        self._child: Child | None = None

    # ---- from any thread --------------------------------------------------------------------------------------

    @property
    def failed(self) -> bool:
        """True if only a new server may help. Where a device lacks room, none would: its other users must go first."""
        if self._lacks_room or self._on_demand_s is not None:
            return False
        return self._failures >= MAX_FAILURES and self._phase is Phase.AWAY

    @property
    def restarts(self) -> Counter[str]:
        return Counter(self._restarts)

    @property
    def is_up(self) -> bool:
        return self._phase is Phase.SERVING

    @property
    def pid(self) -> int | None:
        child = self._child
        return None if child is None else child.process.pid

    def report_timeout(self) -> None:
        """Kills a process that has been loaded for longer than the question waited."""
        self.call(self._kill_if_hung)

    @property
    def _connection(self) -> Connection | None:
        child = self._child
        return None if child is None else child.connection

    # ---- watching thread --------------------------------------------------------------------------------------

    async def _run(self) -> None:
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
                self._first_start.set_exception(fault.error if fault else self._stopped())
                return
            if fault is not None and not self._stopping.is_set():
                await self._back_off(fault)
        self._fail_generation(self._stopped())

    async def _run_process(self) -> Fault | None:
        """Runs one process to its end. Returns its fault, None if it was told to end."""
        try:
            child = self._child = await Child.start(self._program.module, self._program.what)
        except OSError as error:
            return Fault("load", NotServing(f"no process can be started: {error}"))
        ticking = asyncio.create_task(self._tick(child))
        broken: Broken | None = None
        try:
            child.connection.send(self._program.load())
            while broken is None:
                broken = self._on_message(child, await child.connection.receive())
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

    def _on_message(self, child: Child, message: object) -> Broken | None:
        assert isinstance(message, AnyToServer), f"no message to a server: {type(message).__name__}"
        match message:
            case SignOfLife() if not child.ending:
                child.connection.pinged_s = math.inf
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
        child.loaded_s = time.monotonic()
        log.info("%s is ready after %.1f s", self._program.name, child.loaded_s - child.started_s)
        self._serve(child.connection, loaded)

    async def _tick(self, child: Child) -> None:
        """Ends a process that is not needed, kills one that hangs, and pings the others."""
        limit_s = self._program.max_silent_s
        while not child.ending:
            now_s = time.monotonic()
            if self._stopping.is_set():
                self._end(child)
            elif self._fall_asleep_if_idle(now_s):
                log.info("%s is unloaded: nobody used it for %g s", self._program.name, self._on_demand_s)
                self._end(child)
            elif math.isinf(child.loaded_s):
                self._owner.on_loading(now_s)
                if now_s - child.started_s > LOAD_TIMEOUT_S:
                    child.kill(self._hang_fault)
            elif math.isinf(child.connection.pinged_s):
                child.connection.pinged_s = now_s
                child.connection.send(Ping())
            elif now_s - child.connection.pinged_s > limit_s:
                child.kill(self._hang_fault)
            await self._pause(min(TICK_S, limit_s / 4))

    def _kill_if_hung(self) -> None:
        if self._child is not None and time.monotonic() - self._child.loaded_s > ANSWER_TIMEOUT_S:
            self._child.kill(self._hang_fault)

    def _end(self, child: Child) -> None:
        child.ending = True
        if math.isinf(child.loaded_s):
            child.process.kill()  # a process that is loading reads no messages
        child.connection.send(Shutdown())
        asyncio.get_running_loop().call_later(EXIT_TIMEOUT_S, child.process.kill)

    def _set_phase(self, phase: Phase) -> None:
        super()._set_phase(phase)
        self._on_phase()

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
        await self._pause(pause_s)
        if self._on_demand_s is not None:
            self._enter(Phase.ASLEEP)

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
