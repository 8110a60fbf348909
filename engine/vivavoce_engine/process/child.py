"""An engine's process as the server holds it: started, spoken to, and made sure to be gone (worker.py is inside it)."""

import asyncio
import math
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field

from vivavoce_engine.errors import EngineError, NotServing
from vivavoce_engine.ipc.pipe import COUNT, lengths_size, pack, unpack, unpack_lengths
from vivavoce_engine.ipc.spawn import spawn
from vivavoce_engine.process.wire import Broken, Reason

READ_BUFFER_BYTES = 4 * 2**20
STOP_LIMIT_S = 5.0
"""For a process that was told to go."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a process is no more."""

    reason: Reason
    error: EngineError


@dataclass
class Child:
    """A process and the server's end of its pipe. One thread uses it; `asked_s` may be read by any."""

    process: "subprocess.Popen[bytes]"
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    killed_for: Fault | None = None
    sent_away: bool = False
    asked_s: float = math.inf
    """When the oldest question about its life went out that nothing has answered."""
    loaded_s: float = math.inf
    started_s: float = field(default_factory=time.monotonic)

    @classmethod
    async def start(cls) -> "Child":
        process, here = spawn("vivavoce_engine.process.worker")
        reader, writer = await asyncio.open_connection(sock=here, limit=READ_BUFFER_BYTES)
        return cls(process, reader, writer)

    def send(self, message: object) -> None:
        """Never waits: what the process does not take yet is kept."""
        self.writer.writelines(pack(message))

    async def receive(self) -> object:
        """Raises EOFError when the process is gone."""
        read = self.reader.readexactly
        try:
            lengths = unpack_lengths(await read(lengths_size(await read(COUNT.size))))
            return unpack([await read(length) for length in lengths])
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise EOFError("the process is gone") from error

    def kill(self, fault: Fault) -> None:
        self.killed_for = self.killed_for or fault
        self.process.kill()

    def fault(self, broken: Broken | None, status: int) -> Fault:
        """Why it ended, after it has."""
        if self.killed_for is not None:
            return self.killed_for
        if broken is not None:
            return Fault(broken.reason, broken.error)
        end = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return Fault("killed", NotServing(f"the engine's process {end}"))

    async def end(self) -> int:
        """Makes sure that it is gone. Returns its exit status."""
        self.writer.close()
        with suppress(subprocess.TimeoutExpired):
            return await asyncio.to_thread(self.process.wait, STOP_LIMIT_S if self.sent_away else 0.2)
        self.process.kill()
        return await asyncio.to_thread(self.process.wait)
