"""Messages between processes of this project: a pickle, then its large arrays, which are not copied into it.

number of lengths, u32 | lengths, u64 each: of the pickle, then of each array | pickle | arrays
"""

import pickle
import select
import socket
import struct
import threading
from collections.abc import Sequence

COUNT = struct.Struct(">I")
LARGE_BYTES = 4096
"""From this size on an array travels after the pickle (pickle's protocol 5 calls that out of band)."""


def pack(message: object) -> list[bytes | memoryview]:
    """What is to be written, one after the other."""
    arrays: list[memoryview] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        """Whether an array is written into the pickle."""
        view = buffer.raw()
        if view.nbytes < LARGE_BYTES:
            return True
        arrays.append(view)
        return False

    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL, buffer_callback=stays)
    lengths = [len(body), *(view.nbytes for view in arrays)]
    return [COUNT.pack(len(lengths)) + struct.pack(f">{len(lengths)}Q", *lengths) + body, *arrays]


def lengths_size(count: bytes | bytearray) -> int:
    """The first COUNT.size bytes of a message → how many bytes of lengths follow."""
    (lengths,) = COUNT.unpack(count)
    return 8 * int(lengths)


def unpack_lengths(lengths: bytes | bytearray) -> tuple[int, ...]:
    """How many bytes the parts have that follow."""
    return struct.unpack(f">{len(lengths) // 8}Q", lengths)


def unpack(parts: Sequence[bytes | bytearray]) -> object:
    """The message; its large arrays are the parts, not copies of them, and read-only where those are bytes.

    Pickles are taken from the project's own processes only, which hold the other end of an unnamed socket.
    """
    message: object = pickle.loads(parts[0], buffers=parts[1:])
    return message


class Pipe:
    """An end that blocks. Any thread may send; one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        """Raises OSError when the other end is gone."""
        parts = pack(message)
        with self._sending:
            for part in parts:
                self._socket.sendall(part)

    def has_message(self, timeout_s: float | None) -> bool:
        """Whether something arrives in time; None waits for it."""
        return bool(select.select([self._socket], [], [], timeout_s)[0])

    def receive(self) -> object:
        """Raises EOFError when the other end is gone."""
        lengths = unpack_lengths(self._read(lengths_size(self._read(COUNT.size))))
        return unpack([self._read(length) for length in lengths])

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if not count:
                raise EOFError("the other end is gone")
            view = view[count:]
        return data
