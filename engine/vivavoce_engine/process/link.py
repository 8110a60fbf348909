"""Link: a front's way to a process that a Host keeps in another process. Torch-free.

The link talks with the host as long as both live (host.py), and connects to each process that the host names. When the
process ends, or its end of the link, all requests that wait for it fail, and the next one is connected to.
"""

import asyncio
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from vivavoce_engine.errors import NotServing
from vivavoce_engine.process.carrier import TICK_S, Carrier, Owner, Phase
from vivavoce_engine.process.connection import Connection
from vivavoce_engine.process.host_wire import Need, ProcessStatus, Unanswered
from vivavoce_engine.process.wire import Answer, Ping, Ready, SignOfLife

log = logging.getLogger(__name__)

RETRY_S = 0.1
"""Pause before a front connects to the same process again."""


class Link(Carrier):
    """The way to the process of the Host at `address`.

    The first start is over when the host has told the state of the process and, if that serves, the link to it is up.
    An on-demand process is asleep for a front that does not need it, whatever others do.
    """

    def __init__(self, what: str, address: Path, on_demand_s: float | None, gate: threading.Lock, owner: Owner) -> None:
        super().__init__(what, on_demand_s, gate, owner)
        self._address = address
        self._host: Connection | None = None
        self._status: ProcessStatus | None = None
        self._process: Connection | None = None
        self._told_need = False
        self._has_answer = False
        """True if the host has answered the need: the process stays."""

    # ---- from any thread --------------------------------------------------------------------------------------

    @property
    def failed(self) -> bool:
        return self._status is not None and self._status.failed

    @property
    def restarts(self) -> Counter[str]:
        return Counter() if self._status is None else Counter(self._status.restarts)

    @property
    def is_up(self) -> bool:
        return self._status is not None and self._status.phase is Phase.SERVING

    @property
    def pid(self) -> int | None:
        return None if self._status is None else self._status.pid

    def report_timeout(self) -> None:
        self.call(self._tell_host, Unanswered())

    @property
    def _connection(self) -> Connection | None:
        return self._process

    # ---- on the thread ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            self._host = await Connection.to(str(self._address))
        except OSError as error:
            self._first_start.set_exception(NotServing(f"the {self._what}'s host cannot be reached: {error}"))
            return
        ends = NotServing(f"the {self._what}'s host has ended")
        try:
            await self._until_one_ends(self._hear_host(self._host), self._follow(), self._tick(), self._stopping.wait())
        except Exception:
            log.exception("a bug")
        if self._stopping.is_set():
            ends = self._stopped()
        self._host.close()
        self._status = None
        self._fail_generation(ends)
        if not self._first_start.done():
            self._first_start.set_exception(ends)

    async def _until_one_ends(self, *parts: Coroutine[Any, Any, object]) -> None:
        """Runs all side by side until one of them ends, and ends the others. Raises its error."""
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _hear_host(self, host: Connection) -> None:
        """Hears the host until it ends."""
        with suppress(EOFError):
            while True:
                match await host.receive():
                    case ProcessStatus() as status:
                        self._on_status(status)
                    case SignOfLife() as report if self._process is None:
                        self._owner.on_report(report)
                    case SignOfLife():
                        pass  # it is older than what the process tells
                    case message:
                        raise AssertionError(f"no message of a host: {type(message).__name__}")

    def _on_status(self, status: ProcessStatus) -> None:
        self._status = status
        self._has_answer = self._told_need and (self._has_answer or status.answers_need)
        if status.phase is Phase.AWAY and status.error is not None and self._phase is not Phase.AWAY:
            self._fail_generation(status.error)
            self._drop_process()
        elif status.phase is not Phase.SERVING:
            with self._gate:
                if self._phase is Phase.ASLEEP:  # nobody waits for it: its counts alone end
                    self._owner.on_gone(self._stopped())
        self._wake.set()

    async def _follow(self) -> None:
        """Connects to one process after the other, as they are needed."""
        while True:
            self._wake.clear()
            address = self._next_address()
            if address is None:
                await self._wake.wait()
                continue
            with suppress(OSError):  # it has ended, as the host will tell
                self._process = await Connection.to(str(address))
                await self._hear_process(self._process)
            await self._pause(RETRY_S)

    def _next_address(self) -> Path | None:
        """The socket of the process to connect to, None if there is none or none is needed."""
        status = self._status
        if status is None:
            return None
        is_needed = True
        if self._on_demand_s is not None:
            if self._phase is Phase.AWAY and status.phase is not Phase.AWAY:
                self._enter(Phase.ASLEEP)
            self._tell_need(self._phase is Phase.WAKING)
            is_needed = self._has_answer
        if not self._first_start.done() and (self._on_demand_s is not None or status.phase is not Phase.SERVING):
            self._first_start.set_result(None)
        return status.address if is_needed else None

    def _tell_need(self, is_needed: bool) -> None:
        if is_needed != self._told_need:
            self._told_need, self._has_answer = is_needed, False
            self._tell_host(Need(is_needed))

    def _tell_host(self, message: Need | Unanswered) -> None:
        if self._host is not None:
            self._host.send(message)

    async def _hear_process(self, process: Connection) -> None:
        """Hears the process until it ends, or is not needed any more."""
        try:
            while self._process is process:
                match await process.receive():
                    case SignOfLife() as report:
                        process.pinged_s = math.inf
                        self._owner.on_report(report)
                    case Answer() as answer:
                        self._owner.on_answer(answer)
                    case Ready() as loaded:
                        self._serve(process, loaded)
        except EOFError:
            pass
        except Exception:
            log.exception("a bug")
        finally:
            if self._process is process:
                self._drop_process()
                if self._phase is Phase.SERVING:
                    self._fail_generation(NotServing(f"the {self._what} broke down and is being restarted"))

    def _drop_process(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    async def _tick(self) -> None:
        """Leaves a process that is not needed, and pings it otherwise."""
        while True:
            process, now_s = self._process, time.monotonic()
            if self._fall_asleep_if_idle(now_s):
                self._drop_process()
            elif self._phase is Phase.WAKING:
                self._owner.on_loading(now_s)
            elif self._phase is Phase.SERVING and process is not None and math.isinf(process.pinged_s):
                process.pinged_s = now_s
                process.send(Ping())
            await asyncio.sleep(TICK_S)
