"""Messages between processes of this project: a pickle, followed by its large arrays.

Large arrays are sent from their own memory instead of being copied into the pickle. A message is, big-endian:

    number of lengths, u32 | lengths in bytes, u64 each: of the pickle, then of each array | pickle | arrays
"""

import math
import pickle
import select
import socket
import struct
import threading
from collections.abc import Sequence

COUNT = struct.Struct(">I")
LARGE_BYTES = 4096
"""Arrays of this size and more follow the pickle (out of band, in the terms of pickle's protocol 5)."""


def pack(message: object) -> list[bytes | memoryview]:
    """A message as buffers, to be written in their order. Large arrays are views of the message's own memory."""
    arrays: list[memoryview] = []

    def stays(buffer: pickle.PickleBuffer) -> bool:
        """True if an array is written into the pickle."""
        view = buffer.raw()
        if view.nbytes < LARGE_BYTES:
            return True
        arrays.append(view)
        return False

    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL, buffer_callback=stays)
    lengths = [len(body), *(view.nbytes for view in arrays)]
    return [COUNT.pack(len(lengths)) + struct.pack(f">{len(lengths)}Q", *lengths) + body, *arrays]


def lengths_size(count: bytes | bytearray) -> int:
    """Number of bytes of lengths that follow `count`, the first COUNT.size bytes of a message."""
    (lengths,) = COUNT.unpack(count)
    assert lengths >= 1, "a message has a pickle"
    return 8 * int(lengths)


def unpack_lengths(lengths: bytes | bytearray) -> tuple[int, ...]:
    """Number of bytes of each part that follows: the pickle, then the arrays."""
    assert len(lengths) % 8 == 0
    return struct.unpack(f">{len(lengths) // 8}Q", lengths)


def unpack(parts: Sequence[bytes | bytearray]) -> object:
    """The message of a pickle and its large arrays, which share the parts' memory and are read-only if that is bytes.

    Unpickling is safe here: the other end of the unnamed socket is a process of this project.
    """
    message: object = pickle.loads(parts[0], buffers=parts[1:])
    return message


class Pipe:
    """A blocking end of a socket. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        """Raises OSError when the other end is closed."""
        parts = pack(message)
        with self._sending:
            for part in parts:
                self._socket.sendall(part)

    def has_message(self, timeout_s: float | None) -> bool:
        """True if a message, or the end of all messages, arrives within the time. None waits without limit."""
        ready = select.poll()  # select itself takes no descriptor from 1024 on
        ready.register(self._socket, select.POLLIN)
        return bool(ready.poll(None if timeout_s is None else math.ceil(timeout_s * 1000)))

    def receive(self) -> object:
        """The next message. Raises EOFError when the other end is closed."""
        lengths = unpack_lengths(self._read(lengths_size(self._read(COUNT.size))))
        return unpack([self._read(length) for length in lengths])

    def send_descriptors(self, descriptors: Sequence[int]) -> None:
        """Sends copies of open descriptors, at least one, to a process on the other end of a Unix socket.

        Raises:
            OSError: the other end is closed.
        """
        with self._sending:
            socket.send_fds(self._socket, [b"\0"], descriptors)

    def receive_descriptors(self, count: int) -> list[int]:
        """The descriptors of `send_descriptors`, whose number both ends know. Raises EOFError as `receive` does."""
        told, descriptors, _, _ = socket.recv_fds(self._socket, 1, count)
        if not told:
            raise EOFError("the other end is gone")
        assert len(descriptors) == count, f"{len(descriptors)} descriptors came in place of {count}"
        return descriptors

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
