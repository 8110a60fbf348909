"""Log lines: one format for all, the request's id on each, and nothing by which a client could write a line of its own.

Everything that a client sends may come into a line: a path, a method, a name in an error. Characters that end a line,
move a terminal's cursor, or turn the direction of writing around are therefore escaped, whatever field they are in.
Texts to speak never come into one: lines tell their number of characters, and a traceback has no messages.

A record may have `fields`, a mapping of names to values. In JSON each is a key beside the message. In text, those that
`tail` lists follow the message as name=value; the message has the others.
"""

import asyncio
import json
import logging
import math
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

from vivavoce_engine import format_trace

from vivavoce_server.log_writer import LogWriter, QueuedHandler
from vivavoce_server.printed import PrintedOutput

log = logging.getLogger(__name__)

request_id: ContextVar[str] = ContextVar("request_id", default="-")

MAX_FIELD_CHARS = 200
"""Most characters of a client's text in a field of a log line."""
UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
"""Control characters (C0, DEL, C1), ends of lines, marks of direction, invisible characters, and lone surrogates."""
PLAIN = re.compile(r"[\w./:@+\[\]-]+")
"""A field's value that needs no quotation marks."""
OWN_PACKAGES = ("vivavoce_engine", "vivavoce_server", "vivavoce_text", "vivavoce_voice")
"""Packages whose information is logged. Of others, warnings are."""
TOLD_BY_US = ("ASGI callable returned without completing handshake.", "Invalid HTTP request received.")
"""Records of uvicorn about requests whose lines say more."""
PYDANTIC = "/pydantic/"
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


class _Formatter(logging.Formatter):
    """Writes times as RFC 3339 does, in UTC with milliseconds."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(_Formatter):
    """Formats each record as one line. Lines of a traceback are indented, so that none of them looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        fields: Mapping[str, object] = record.__dict__.get("fields", {})
        tail = (f" {name}={_value(fields[name])}" for name in record.__dict__.get("tail", ()))
        lines = [printable(self.formatMessage(record) + "".join(tail))]
        lines += (TRACE_INDENT + printable(line) for line in _trace(record).split("\n") if line)
        return "\n".join(lines)


def _value(value: object) -> str:
    """A field's value behind its name: in quotation marks if it could be taken for more than one field."""
    text = str(value)
    return text if PLAIN.fullmatch(text) else json.dumps(value, ensure_ascii=False, default=str)


class JsonFormatter(_Formatter):
    """Formats each record as one JSON object per line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": record.__dict__["request_id"],
        }
        line = {**record.__dict__.get("fields", {}), **line}
        if trace := _trace(record):
            line["exception"] = trace
        # The keys that all lines have come first. JSON leaves DEL as it is.
        order = sorted(line, key=lambda name: name not in ("time", "level", "logger", "message", "request_id"))
        return json.dumps({name: line[name] for name in order}, default=str).replace("\x7f", "\\u007f")


def _trace(record: logging.LogRecord) -> str:
    """The traceback of a record, which may come as text from another process; empty without one."""
    error = record.exc_info[1] if record.exc_info else None
    return record.exc_text or (format_trace(error) if error is not None else "")


def log_to_stderr(level: str, as_json: bool) -> tuple[int, int]:
    """Sends the process's logs to stderr, as lines of text or of JSON. Returns the descriptors of stdout and stderr.

    In JSON, lines that this process and its children print become records of the loggers stdout and stderr. Their
    descriptors 1 and 2 are then pipes to this process.
    """
    formatter = JsonFormatter() if as_json else TextFormatter(TEXT_FORMAT)
    printed = PrintedOutput() if as_json else None
    writer = LogWriter()
    handler = _handler(writer, formatter, None if printed is None else printed.stderr)
    lowest = getattr(logging, level.upper())
    # Information of libraries may repeat what a client sent: a URL with a secret in it, or the frames of a socket.
    logging.basicConfig(level=max(lowest, logging.WARNING), handlers=[handler], force=True)
    for package in OWN_PACKAGES:
        logging.getLogger(package).setLevel(lowest)
    # A record that cannot be written would be printed, with its arguments. In JSON that is a record again, without end.
    logging.raiseExceptions = False
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.filters.clear()
    uvicorn.addFilter(lambda record: record.msg not in TOLD_BY_US)
    _log_what_python_prints()
    if printed is None:
        return 1, 2
    others = _handler(writer, formatter, printed.stdout)
    printed.start({"stdout": others.handle, "stderr": handler.handle})
    return printed.stdout.fileno(), printed.stderr.fileno()


def _handler(writer: LogWriter, formatter: logging.Formatter, stream: TextIO | None) -> logging.Handler:
    handler = QueuedHandler(writer, stream)
    handler.addFilter(RequestIdFilter())
    handler.setFormatter(formatter)
    return handler


def _log_what_python_prints() -> None:
    """Makes records of warnings, and of exceptions that nobody catches."""

    def warn(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        # pydantic's warnings repeat values of requests.
        said = "a value is not of its field's type" if PYDANTIC in filename else str(message)
        fields = {"category": category.__name__, "place": f"{filename}:{lineno}"}
        text = "%(category)s at %(place)s: " + said.replace("%", "%%")
        logging.getLogger("py.warnings").warning(text, fields, extra={"fields": fields})

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
            return
        log.critical("a bug ends the process", exc_info=(kind, error, trace))

    def uncaught_on_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            log.error("a bug ends a thread", exc_info=args.exc_value)

    def unraisable(args: "sys.UnraisableHookArgs") -> None:
        log.error("a bug in a finalizer", exc_info=args.exc_value)

    warnings.showwarning = warn
    sys.excepthook = uncaught
    threading.excepthook = uncaught_on_thread
    sys.unraisablehook = unraisable


def log_settings(settings: Mapping[str, object]) -> None:
    """Writes the settings of the server, as an object. Keys are hidden in it."""
    log.info("settings", extra={"fields": {"settings": settings}, "tail": ("settings",)})


def log_bug_of_loop(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An event loop's exception handler. asyncio's own one repeats the callbacks' arguments and the error's message."""
    message = str(context.get("message", "")).partition(" in callback ")[0]
    log.error("a bug: %s", message or "an exception", exc_info=context.get("exception"))


class Throttle:
    """Writes one line a second at most about events that clients may cause by the thousand."""

    def __init__(self, log: logging.Logger, level: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._level = level
        self._clock = clock
        self._next_s = -math.inf
        self._untold = 0

    def tell(self, message: str, *args: object, extra: Mapping[str, object] | None = None) -> None:
        """Writes the line, with the number of those that were left out since the last one."""
        now_s = self._clock()
        if now_s < self._next_s:
            self._untold += 1
            return
        self._next_s = now_s + THROTTLE_S
        if self._untold:
            message, args = message + " (and %d more such lines)", (*args, self._untold)
        self._untold = 0
        self._log.log(self._level, message, *args, extra=extra)
