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
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress

COUNT = struct.Struct(">I")
LARGE_BYTES = 4096
"""Arrays of this size and more follow the pickle (out of band, in the terms of pickle's protocol 5)."""
MAX_PARTS = 512
"""Buffers in one call of the system, which takes 1024 at most."""


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


def _read_message() -> Generator[bytearray, None, object]:
    """Yields the buffers that a message's bytes fill, one after the other, and returns the message."""
    count = bytearray(COUNT.size)
    yield count
    lengths = bytearray(lengths_size(count))
    yield lengths
    parts = [bytearray(length) for length in unpack_lengths(lengths)]
    yield from parts
    return unpack(parts)


class Pipe:
    """A blocking end of a socket. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._message = _read_message()
        self._unfilled = memoryview(next(self._message))

    def fileno(self) -> int:
        return self._socket.fileno()

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
        return self._receive(0)

    def take(self) -> object | None:
        """The next message if all of it has arrived, else None. Raises EOFError when the other end is closed."""
        return self._receive(socket.MSG_DONTWAIT)

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

    def _receive(self, flags: int) -> object | None:
        while True:
            while self._unfilled:
                try:
                    count = self._socket.recv_into(self._unfilled, 0, flags)
                except BlockingIOError:
                    return None
                if not count:
                    raise EOFError("the other end is gone")
                self._unfilled = self._unfilled[count:]
            try:
                self._unfilled = memoryview(next(self._message))
            except StopIteration as end:
                self._message = _read_message()
                self._unfilled = memoryview(next(self._message))
                message: object = end.value
                return message


class PatientPipe(Pipe):
    """A Pipe whose `send` never waits: a thread sends later what the other end has no room for.

    The arrays of a message must therefore stay as they are. An end that takes nothing for `stall_s` is shut down, after
    which both ends see the end of the messages.
    """

    def __init__(self, end: socket.socket, stall_s: float) -> None:
        super().__init__(end)
        # The timeout of the system applies to the thread's calls alone: `take` and the first try never wait.
        whole_s = int(stall_s)
        limit = struct.pack("@ll", whole_s, int((stall_s - whole_s) * 1e6))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._changed = threading.Condition()
        self._unsent: deque[bytes | memoryview] = deque()
        self._closed = False
        self._thread: threading.Thread | None = None

    def send(self, message: object) -> None:
        """Raises OSError when the other end is closed."""
        parts = pack(message)
        with self._changed:
            if self._closed:
                raise BrokenPipeError("this end is closed")
            if not self._unsent:
                parts = self._send_now(parts)
            if not parts:
                return
            self._unsent += parts
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_later, name="vivavoce-sender", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Closes this end. What has not been sent yet is lost."""
        self._shut_down()
        if self._thread is not None:
            self._thread.join()
        super().close()

    def _shut_down(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        with suppress(OSError):  # the other end may have gone first
            self._socket.shutdown(socket.SHUT_RDWR)  # ends a call of the thread that waits

    def _send_now(self, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
        """Sends as much as the socket has room for. Returns the rest."""
        while parts:
            try:
                sent = self._socket.sendmsg(parts[:MAX_PARTS], (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            if sent:
                parts[0] = memoryview(parts[0])[sent:]
        return parts

    def _send_later(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unsent or self._closed)
                if self._closed:
                    return
                part = self._unsent[0]
            try:
                self._socket.sendall(part)
            except OSError:
                self._shut_down()
                return
            with self._changed:
                self._unsent.popleft()
