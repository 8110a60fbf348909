"""Child: one process and the server's end of its pipe. A worker module runs at the other end."""

import asyncio
import math
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field

from vivavoce_engine.errors import EngineError, NotServing
from vivavoce_engine.ipc.spawn import spawn_module
from vivavoce_engine.process.connection import Connection
from vivavoce_engine.process.wire import Broken, Reason

EXIT_TIMEOUT_S = 5.0
"""A process that was told to end is killed after this long."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason for which a process ended, and the error for the log."""

    reason: Reason
    error: EngineError


@dataclass
class Child:
    """A process and the server's end of its pipe.

    The watching thread uses it; other threads may read the process id. Times are of time.monotonic, infinite while
    they are not known.
    """

    what: str
    process: "subprocess.Popen[bytes]"
    connection: Connection
    kill_fault: Fault | None = None
    ending: bool = False
    """The process was told to end."""
    loaded_s: float = math.inf
    started_s: float = field(default_factory=time.monotonic)

    @classmethod
    async def start(cls, module: str, what: str) -> "Child":
        """Runs a module of this package, as `spawn_module` does. Messages call the process `what`."""
        process, here = spawn_module(module)
        return cls(what, process, await Connection.over(here))

    def kill(self, fault: Fault) -> None:
        """Kills the process. The first fault stays."""
        self.kill_fault = self.kill_fault or fault
        self.process.kill()

    def exit_fault(self, broken: Broken | None, status: int) -> Fault:
        """The fault of a process that has ended, from its last message and its exit status."""
        if self.kill_fault is not None:
            return self.kill_fault
        if broken is not None:
            return Fault(broken.reason, broken.error)
        end = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return Fault("killed", NotServing(f"the {self.what}'s process {end}"))

    async def ensure_gone(self) -> int:
        """Waits for the process to end, kills it if it does not, and returns its exit status."""
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            return await asyncio.to_thread(self.process.wait, EXIT_TIMEOUT_S if self.ending else 0.2)
        self.process.kill()
        return await asyncio.to_thread(self.process.wait)
