"""Connection: an end of a socket between processes, on an event loop."""

import asyncio
import math
import socket

from vivavoce_engine.ipc.pipe import COUNT, lengths_size, pack, unpack, unpack_lengths

READ_BUFFER_BYTES = 4 * 2**20


class Connection:
    """Sends and receives messages on one event loop. Other threads may read `pinged_s`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.pinged_s = math.inf
        """Time (time.monotonic) of the Ping that has no answer yet, infinite without one."""

    @classmethod
    async def over(cls, end: socket.socket) -> "Connection":
        """A connection over a socket that is connected."""
        return cls(*await asyncio.open_connection(sock=end, limit=READ_BUFFER_BYTES))

    @classmethod
    async def to(cls, path: str) -> "Connection":
        """Connects to a Unix socket. Raises OSError if nobody listens there."""
        return cls(*await asyncio.open_unix_connection(path, limit=READ_BUFFER_BYTES))

    def send(self, message: object) -> None:
        """Never waits: the writer buffers bytes that the other process has not read yet."""
        self._writer.writelines(pack(message))

    async def receive(self) -> object:
        """The next message. Raises EOFError when the other end is closed."""
        read = self._reader.readexactly
        try:
            lengths = unpack_lengths(await read(lengths_size(await read(COUNT.size))))
            return unpack([await read(length) for length in lengths])
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise EOFError("the process is gone") from error

    def close(self) -> None:
        self._writer.close()
