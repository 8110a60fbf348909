"""Lines that this process and its children print, made into log records.

A log of JSON has one object a line. Libraries in C, children, and Python itself write to the same descriptors, without
asking. Both descriptors therefore become pipes, whose lines a thread reads; the log goes to the real ones.
"""

import atexit
import fcntl
import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TextIO

PIPE_BYTES = 2**20
"""Size of a pipe where the system allows it. A process that prints more at once waits for the thread."""
MAX_LINE_BYTES = 2**16
"""A longer line is cut into several records."""
LEVELS = {"vivavoce: ": logging.ERROR, "WARNING: ": logging.WARNING}
"""Beginnings of printed lines that are more than information."""


class PrintedOutput:
    """The descriptors 1 and 2 of this process. `stdout` and `stderr` are the real ones."""

    def __init__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._real = {"stdout": os.dup(1), "stderr": os.dup(2)}
        self.stdout, self.stderr = (_writer(descriptor) for descriptor in self._real.values())
        self._pipes: dict[int, str] = {}
        """The reading ends, with their names."""
        self._stop, self._stopping = os.pipe()
        self._thread = threading.Thread(target=self._read, name="vivavoce-printed", daemon=True)
        self._handle: Mapping[str, Callable[[logging.LogRecord], object]] = {}

    def start(self, handle: Mapping[str, Callable[[logging.LogRecord], object]]) -> None:
        """Replaces both descriptors until the process exits. `handle` takes the records of stdout and of stderr."""
        self._handle = handle
        for number, name in ((1, "stdout"), (2, "stderr")):
            reading, writing = os.pipe()
            with suppress(OSError):  # where the system allows less, the pipe stays small
                fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            os.dup2(writing, number)
            os.close(writing)
            os.set_blocking(reading, False)
            self._pipes[reading] = name
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        atexit.register(self.close)
        self._thread.start()

    def close(self) -> None:
        """Gives the real descriptors back, once all that was printed has been handled. Children may still print."""
        sys.stdout.flush()
        sys.stderr.flush()
        for number, real in zip((1, 2), self._real.values(), strict=True):
            os.dup2(real, number)
        os.write(self._stopping, b".")
        self._thread.join()

    def _read(self) -> None:
        rest = dict.fromkeys(self._pipes, b"")
        poll = select.poll()
        for descriptor in (*self._pipes, self._stop):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            for descriptor in self._pipes if self._stop in ready else ready:
                rest[descriptor] = self._tell(self._pipes[descriptor], rest[descriptor] + _available(descriptor))
            if self._stop in ready:
                break
        for descriptor, last in rest.items():
            self._tell(self._pipes[descriptor], last + b"\n")

    def _tell(self, name: str, printed: bytes) -> bytes:
        """Handles all whole lines. Returns the rest."""
        *lines, rest = printed.split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            lines.append(rest)
            rest = b""
        pieces = (
            line[start : start + MAX_LINE_BYTES] for line in lines for start in range(0, len(line), MAX_LINE_BYTES)
        )
        for piece in pieces:
            if text := piece.decode(errors="backslashreplace").strip():
                level = next((level for start, level in LEVELS.items() if text.startswith(start)), logging.INFO)
                self._handle[name](logging.LogRecord(name, level, "", 0, text, None, None))
        return rest


def _writer(descriptor: int) -> TextIO:
    return open(descriptor, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


def _available(descriptor: int) -> bytes:
    """The bytes that can be read without waiting, up to PIPE_BYTES."""
    try:
        return os.read(descriptor, PIPE_BYTES)
    except BlockingIOError:
        return b""
