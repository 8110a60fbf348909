"""Host: keeps a process for several fronts, which speak with it over links of their own. Torch-free.

    front ◄── ProcessStatus ─── host: Watcher ──► the process
      │   ─── Need, Unanswered ──►                     │
      └───────────────── link: wire.py ────────────────┘

The host tells the state of the process and the address of its socket, and wakes it. What is spoken never passes through
the host. An on-demand process is needed while any front says so. A front says that it needs the process no more when
its own time has run out, and asks again before it sends anything, so a process is never unloaded under a request. Until
then it has no link, and the host passes on what the process reports each second: its queue and its counts.
"""

import asyncio
import itertools
import math
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vivavoce_engine.errors import EngineError, NotServing
from vivavoce_engine.ipc.unix_socket import is_own_user, listen
from vivavoce_engine.process.carrier import Phase
from vivavoce_engine.process.connection import Connection
from vivavoce_engine.process.host_wire import Need, ProcessStatus, Unanswered
from vivavoce_engine.process.watcher import Program, Watcher
from vivavoce_engine.process.wire import Answer, Ready, SignOfLife

NUMBERS = itertools.count(1)
"""Numbers of the hosts in this process."""


class Host:
    """A process, watched and restarted, whose work belongs to other processes: the fronts.

    A front is given `address`, a path in `folder`, which is private (`private_folder`) and may serve several hosts.
    `program` is given the function that names the socket of the next process. `on_demand_s` is as for Watcher; the
    fronts are given the same.
    """

    def __init__(
        self,
        program: Callable[[Callable[[], Path]], Program],
        folder: Path,
        on_demand_s: float | None = None,
    ) -> None:
        self.address = folder / f"host{next(NUMBERS)}"
        """Unix socket at which fronts ask for the process."""
        self._starts = 0
        self._error: EngineError | None = None
        """Why the last process ended."""
        self._is_on_demand = on_demand_s is not None
        self._report: SignOfLife | None = None
        """Last report of the process that serves, None without one."""
        self._fronts: set[Connection] = set()
        self._needed_by: set[Connection] = set()
        self._gate = threading.Lock()
        self._watcher = Watcher(program(self._next_address), on_demand_s, self._gate, self, self._tell)

    @property
    def phase(self) -> Phase:
        return self._watcher.phase

    @property
    def failed(self) -> bool:
        return self._watcher.failed

    @property
    def restarts(self) -> Counter[str]:
        return self._watcher.restarts

    @property
    def pid(self) -> int | None:
        """Process id, None while there is no process."""
        return self._watcher.pid

    @property
    def fronts(self) -> int:
        """Number of fronts that are connected."""
        return len(self._fronts)

    def begin(self) -> None:
        """Starts the process and the address, and does not wait. Raises EngineError if there can be no address."""
        try:
            listener = listen(self.address)
        except OSError as error:
            raise EngineError(f"no socket can be made at {self.address}: {error}") from error
        self._watcher.start()
        self._watcher.call(self._open, listener)

    def wait_until_started(self) -> None:
        """Returns when the model is loaded, at once if on demand. Raises EngineError if it cannot be loaded."""
        self._watcher.wait_until_started()

    def stop(self) -> None:
        """Ends the process. What runs fails with NotServing, in all fronts."""
        self._watcher.stop()
        self.address.unlink(missing_ok=True)
        self._process_address.unlink(missing_ok=True)

    @property
    def _process_address(self) -> Path:
        return self.address.with_name(f"{self.address.name}.{self._starts}")

    def _next_address(self) -> Path:
        self._process_address.unlink(missing_ok=True)  # that of a process that was killed
        self._starts += 1
        return self._process_address

    # ---- watching thread --------------------------------------------------------------------------------------

    def _open(self, listener: socket.socket) -> None:
        self._serving = asyncio.get_running_loop().create_task(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        server = await asyncio.start_unix_server(self._on_front, sock=listener)
        try:
            await asyncio.Event().wait()
        finally:
            server.close()

    async def _on_front(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Talks with a front until it ends."""
        front = Connection(reader, writer)
        try:
            if not is_own_user(writer.get_extra_info("socket")):
                return
            self._fronts.add(front)
            front.send(self._status())
            self._pass_on(front)
            while True:
                self._on_message(front, await front.receive())
        except EOFError:
            pass
        finally:
            self._fronts.discard(front)
            self._needed_by.discard(front)
            front.close()

    def _on_message(self, front: Connection, message: object) -> None:
        match message:
            case Need(is_needed=True):
                self._needed_by.add(front)
                with self._gate, suppress(NotServing):  # the status says that it is away
                    self._watcher.require()
                front.send(replace(self._status(), answers_need=True))
            case Need():
                self._needed_by.discard(front)
                self._pass_on(front)
            case Unanswered():
                self._watcher.report_timeout()
            case _:
                raise AssertionError(f"no message to a host: {type(message).__name__}")

    def _status(self) -> ProcessStatus:
        watcher, phase = self._watcher, self._watcher.phase
        serves, away = phase is Phase.SERVING, phase is Phase.AWAY
        address, error = self._process_address if serves else None, self._error if away else None
        return ProcessStatus(phase, watcher.pid, address, watcher.failed, watcher.restarts, error)

    def _tell(self) -> None:
        """Tells all fronts the state as it is now. Called with the gate held."""
        if self._watcher.phase is not Phase.AWAY:
            self._error = None
        self._watcher.call(self._send, self._status())

    def _send(self, status: ProcessStatus) -> None:
        for front in self._fronts:
            front.send(status)

    def _pass_on(self, front: Connection) -> None:
        """Tells a front without a link what the process has reported last."""
        if self._report is not None and self._is_on_demand and front not in self._needed_by:
            front.send(self._report)

    # ---- watching thread: see Owner ---------------------------------------------------------------------------

    def on_report(self, report: SignOfLife) -> None:
        self._report = report
        for front in self._fronts:
            self._pass_on(front)

    def on_answer(self, answer: Answer) -> None:
        raise AssertionError("a host asks nothing")

    def on_loading(self, now_s: float) -> None:
        """Nothing: the fronts hold the requests."""

    def on_loaded(self, loaded: Ready) -> None:
        """Nothing: the process tells each front itself."""

    def last_needed_s(self) -> float:
        return math.inf if self._needed_by else -math.inf

    def on_gone(self, error: EngineError) -> None:
        self._error, self._report = error, None
        self._tell()
