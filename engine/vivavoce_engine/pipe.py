"""Messages between processes of this project: pickles behind their length."""

import pickle
import select
import socket
import struct
import threading

LENGTH = struct.Struct(">Q")


def pack(message: object) -> bytes:
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> object:
    """Pickles are taken from the project's own processes only, which hold the other end of an unnamed socket."""
    message: object = pickle.loads(body)
    return message


class Pipe:
    """An end that blocks. Any thread may send; one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        """Raises OSError when the other end is gone."""
        data = pack(message)
        with self._sending:
            self._socket.sendall(data)

    def has_message(self, timeout_s: float | None) -> bool:
        """Whether something arrives in time; None waits for it."""
        return bool(select.select([self._socket], [], [], timeout_s)[0])

    def receive(self) -> object:
        """Raises EOFError when the other end is gone."""
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        return unpack(self._read(length))

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if not count:
                raise EOFError("the other end is gone")
            view = view[count:]
        return bytes(data)
