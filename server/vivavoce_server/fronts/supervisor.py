"""Supervisor: starts the fronts, starts another where one dies, and passes signals on to them."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from vivavoce_engine import EngineConfig, EngineError, PatientPipe, Pipe, spawn_module

from vivavoce_server.access import read_keys_again
from vivavoce_server.config import ServerConfig
from vivavoce_server.draining import CLOSE_CONNECTIONS_S
from vivavoce_server.fronts.messages import Alive, Begin, Keys, Leave, LinkedModel, Renew
from vivavoce_server.ledger import Ledger, create_memory
from vivavoce_server.metrics import FOLDER_VARIABLE
from vivavoce_server.sighup import SighupHandler

log = logging.getLogger(__name__)

FIRST_PAUSE_S, MAX_PAUSE_S = 0.25, 30.0
"""Pause before another front is started. It doubles with each one that dies soon."""
STABLE_AFTER_S = 60.0
"""A front that has lived for this long did not die soon."""
MAX_DOUBLINGS = 16
START_S, SILENT_S = 120.0, 20.0
"""Longest time until a front serves, and later until it shows life again, after which it is killed."""
DEAF_S = 2 * SILENT_S
"""Longest time in which a front takes nothing of what it is told. It has been killed before that."""
LEAVE_S = 4 * CLOSE_CONNECTIONS_S + 6.0
"""Seconds beyond `grace_s` after which a front that has not ended is killed."""
LEAVE_NOW_S = 3.0
"""The same for fronts that were told to end at once."""


class FrontFailed(EngineError):
    """A front ended before it served for the first time."""


@dataclass(frozen=True)
class Plan:
    """Settings, models and sockets of the fronts. `output` are the descriptors of the real stdout and stderr."""

    fronts: int
    config: ServerConfig
    engine_config: EngineConfig
    models: Mapping[str, LinkedModel]
    listeners: Sequence[socket.socket]
    """The socket for HTTP, and the one for the Wyoming protocol if there is one, which the first front serves."""
    output: tuple[int, int]
    metrics_folder: Path


@dataclass
class Child:
    """A front's process and the supervisor's end of its pipe."""

    process: "subprocess.Popen[bytes]"
    end: socket.socket
    pipe: Pipe
    """Never waits for the front once it has been told to begin: the others are kept by the same event loop."""
    keys: Keys | None = None
    """The keys that it has been given; None until it has been told to begin."""
    started_s: float = field(default_factory=time.monotonic)

    async def receive(self) -> object:
        """The next message. Raises EOFError when the process has ended."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.end, readable.set)
        try:
            await readable.wait()
            return self.pipe.receive()
        except ConnectionError as error:
            raise EOFError("the front is gone") from error
        finally:
            loop.remove_reader(self.end)


class Supervisor:
    """Keeps the fronts of a plan: `await run()`, until a signal has ended them."""

    def __init__(self, plan: Plan, keys: Keys, sighup: SighupHandler, on_started: Callable[[], None]) -> None:
        """`on_started` is called once all fronts serve."""
        self._plan = plan
        self._keys = keys
        self._sighup = sighup
        self._on_started = on_started
        self._created_s = int(time.time())
        self._memory = create_memory(plan.fronts)
        self._ledger = Ledger(plan.fronts, 0, self._memory)
        self._children: dict[int, Child] = {}
        self._serving: set[int] = set()
        """Numbers of the fronts that have served."""
        self._leaving: asyncio.Event = asyncio.Event()

    async def run(self) -> None:
        """Starts the fronts, and keeps them until they are told to end and have ended.

        Raises:
            FrontFailed: a front ended before it served for the first time.
        """
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, self._leave)
        self._sighup.serve(loop, self._reload, self._leave)
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._plan.fronts):
                    group.create_task(self._keep(number))
        except* FrontFailed as failures:
            raise failures.exceptions[0] from None
        finally:
            for child in self._children.values():
                child.process.kill()
                child.process.wait()
            os.close(self._memory)

    async def _keep(self, number: int) -> None:
        """Runs one process after another as the front of this number."""
        failures = 0
        while not self._leaving.is_set():
            child = await self._start(number)
            with suppress(EOFError):
                await self._watch(number, child)
            status = await asyncio.to_thread(child.process.wait)
            child.pipe.close()
            del self._children[number]
            self._ledger.clear(number)
            if self._leaving.is_set():
                return
            if number not in self._serving:
                raise FrontFailed(f"front {number} {_told(status)} before it served")
            failures = 1 if time.monotonic() - child.started_s > STABLE_AFTER_S else failures + 1
            pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, MAX_DOUBLINGS))
            message = "front %d %s, with its connections; the others go on, and another one starts in %g s"
            log.error(message, number, _told(status), pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._leaving.wait()

    async def _watch(self, number: int, child: Child) -> None:
        """Hears a front until it ends, and kills one that does not go on. Raises EOFError at its end."""
        limit_s = START_S
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    assert isinstance(await child.receive(), Alive)
            except TimeoutError:
                log.error("front %d does not go on since %g s, and is killed", number, limit_s)
                child.process.kill()
            else:
                self._note_serving(number)
                limit_s = SILENT_S

    async def _start(self, number: int) -> Child:
        """A new process for this front, which has been told all that it needs."""
        variables = {FOLDER_VARIABLE: str(self._plan.metrics_folder)}
        process, end = spawn_module("vivavoce_server.fronts.front", variables)
        child = self._children[number] = Child(process, end, Pipe(end))
        keys = self._keys
        await asyncio.to_thread(self._instruct, child, number, keys)  # the text parts of a model may be large
        child.keys, child.pipe = keys, PatientPipe(child.end, DEAF_S)
        if self._keys is not keys:
            self._tell(child, Renew(self._keys))
        if self._leaving.is_set():
            self._tell(child, Leave(now=False))
        return child

    def _instruct(self, child: Child, number: int, keys: Keys) -> None:
        plan = self._plan
        listeners = plan.listeners if number == 0 else plan.listeners[:1]
        descriptors = [*plan.output, self._memory, *(listener.fileno() for listener in listeners)]
        begin = Begin(
            number=number,
            fronts=plan.fronts,
            config=plan.config,
            engine_config=plan.engine_config,
            models=plan.models,
            keys=keys,
            created_s=self._created_s,
            descriptors=len(descriptors),
        )
        with suppress(OSError):  # it has ended already
            child.pipe.send(begin)
            child.pipe.send_descriptors(descriptors)

    def _note_serving(self, number: int) -> None:
        self._serving.add(number)
        if len(self._serving) == self._plan.fronts:
            on_started, self._on_started = self._on_started, lambda: None
            on_started()

    def _reload(self) -> None:
        keys = read_keys_again(self._plan.config)
        if keys is not None:
            self._keys = tuple(keys)
        self._tell_all(Renew(None if keys is None else self._keys))

    def _leave(self) -> None:
        """The first signal drains all fronts; another one ends them at once."""
        now = self._leaving.is_set()
        self._leaving.set()
        self._tell_all(Leave(now))
        seconds = LEAVE_NOW_S if now else self._plan.config.grace_s + LEAVE_S
        asyncio.get_running_loop().call_later(seconds, self._kill_all)

    def _kill_all(self) -> None:
        for number, child in self._children.items():
            log.warning("front %d does not end, and is killed", number)
            child.process.kill()

    def _tell_all(self, message: object) -> None:
        for child in self._children.values():
            if child.keys is not None:
                self._tell(child, message)

    @staticmethod
    def _tell(child: Child, message: object) -> None:
        with suppress(OSError):  # it has just ended
            child.pipe.send(message)


def _told(status: int) -> str:
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
