"""Writes log lines on a thread of their own, so that a log whose reader has stalled stops no request.

A pipe holds 64 KiB. When nobody reads it, as when a log collector hangs, a write waits without an end.
"""

import logging
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TextIO

log = logging.getLogger(__name__)

MAX_WAITING_CHARS = 4 * 2**20
"""Most characters of lines that wait for the log's reader. Later lines are lost, and their number is told."""
FLUSH_S = 2.0
"""Seconds that a process which ends waits for the log's reader."""


class LogWriter:
    """Lines that wait, and the thread that writes them. Handlers that share one keep the order of their lines."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[TextIO, str]] = deque()
        self._waiting_chars = 0
        """Characters of the lines that are not written yet, including the one that is being written."""
        self._lost = 0
        self._thread: threading.Thread | None = None

    def put(self, stream: TextIO, line: str) -> bool:
        """Takes a line to write. Returns False if too much waits already: the line is then lost."""
        with self._changed:
            if self._waiting_chars and self._waiting_chars + len(line) > MAX_WAITING_CHARS:
                self._lost += 1
                return False
            self._waiting.append((stream, line))
            self._waiting_chars += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="vivavoce-log", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return True

    def take_lost(self) -> int:
        """The number of lines that were lost since the last call, once half of the room is free again."""
        with self._changed:
            if self._waiting_chars > MAX_WAITING_CHARS // 2:
                return 0
            lost, self._lost = self._lost, 0
            return lost

    def flush(self, timeout_s: float) -> bool:
        """Waits until every line is written. Returns False if that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting_chars, timeout_s)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                stream, line = self._waiting.popleft()
            with suppress(OSError, ValueError):  # the reader has closed the pipe
                stream.write(line)
                stream.flush()
            with self._changed:
                self._waiting_chars -= len(line)
                self._changed.notify_all()


class QueuedHandler(logging.Handler):
    """Formats records where they are made, and leaves writing to a LogWriter."""

    def __init__(self, writer: LogWriter, stream: TextIO | None) -> None:
        super().__init__()
        self._writer = writer
        self._stream = sys.stderr if stream is None else stream

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if lost := self._writer.take_lost():
                about = f"{lost} lines of the log were lost, because nobody read the log"
                self.handle(logging.LogRecord(log.name, logging.WARNING, "", 0, about, None, None))
            self._writer.put(self._stream, self.format(record) + "\n")
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Waits for the log's reader when logging is shut down, which is when the process ends."""
        self._writer.flush(FLUSH_S)
