"""Log lines: the request's id on each, and nothing in them by which a client could write a line of its own.

Everything that a client sends may come into a line: a path, a method, a name in an error. Characters that end a line,
move a terminal's cursor, or turn the direction of writing around are therefore escaped, whatever field they are in.
"""

import json
import logging
import math
import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

request_id: ContextVar[str] = ContextVar("request_id", default="-")

MAX_FIELD_CHARS = 200
"""Most characters of a client's text in a field of a log line."""
UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
"""Control characters (C0, DEL, C1), ends of lines, marks of direction, invisible characters, and lone surrogates."""
THROTTLE_S = 1.0
TRACE_INDENT = "  | "
TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s"


def printable(text: str) -> str:
    """The text with all unsafe characters as escapes, such as \\n and \\u202e."""
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def for_log(text: str) -> str:
    """A client's text for a field of a log line: printable, and cut to MAX_FIELD_CHARS."""
    return printable(text if len(text) <= MAX_FIELD_CHARS else text[:MAX_FIELD_CHARS] + "...")


class RequestIdFilter(logging.Filter):
    """Adds the current request's id to every log record."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = request_id.get()
        return True


class TextFormatter(logging.Formatter):
    """Formats each record as one line. Lines of a traceback are indented, so that none of them looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record, self.datefmt)
        lines = [printable(self.formatMessage(record))]
        lines += (TRACE_INDENT + printable(line) for line in _trace(self, record).split("\n") if line)
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object per line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": record.__dict__["request_id"],
            **record.__dict__.get("fields", {}),
        }
        if trace := _trace(self, record):
            line["exception"] = trace
        return json.dumps(line, default=str).replace("\x7f", "\\u007f")  # JSON leaves DEL as it is


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The traceback of a record, which may come as text from another process; empty without one."""
    return record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else "")


def log_to_stderr(level: str, as_json: bool) -> None:
    """Sends the process's logs to stderr, as lines of text or of JSON."""
    handler = logging.StreamHandler()
    handler.addFilter(RequestIdFilter())
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter(TEXT_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # uvicorn's information ("started server process") duplicates our own. Its warnings are useful.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # httpx would log each URL that a client sent, with any secret in it.
    logging.getLogger("httpx").setLevel(logging.WARNING)


class Throttle:
    """Writes one line a second at most about events that clients may cause by the thousand."""

    def __init__(self, log: logging.Logger, level: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._level = level
        self._clock = clock
        self._next_s = -math.inf
        self._untold = 0

    def tell(self, message: str, *args: object) -> None:
        """Writes the line, with the number of those that were left out since the last one."""
        now_s = self._clock()
        if now_s < self._next_s:
            self._untold += 1
            return
        self._next_s = now_s + THROTTLE_S
        if self._untold:
            message, args = message + " (and %d more such lines)", (*args, self._untold)
        self._untold = 0
        self._log.log(self._level, message, *args)
