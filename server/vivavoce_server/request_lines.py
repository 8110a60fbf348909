"""Lines of the log about what clients asked for: one for each request, connection, utterance and item of a batch.

A line has the reason in it: fields are noted on the current line where they become known, and it is written at the end.
It never holds a text, only its number of characters. A line is also a span of OpenTelemetry, see spans.py.
"""

import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from opentelemetry.trace import NoOpTracer, Span, Tracer

from vivavoce_server.logs import Throttle, for_log
from vivavoce_server.spans import Moments, begin_span, end_span

log = logging.getLogger(__name__)

Event = Literal["request", "connection", "utterance", "item"]
FIELDS = (
    "event",
    "method",
    "path",
    "status",
    "close_code",
    "utterance",
    "item",
    "outcome",
    "code",
    "param",
    "model",
    "voice",
    "format",
    "cache",
    "chars",
    "audio_s",
    "frames",
    "first_audio_s",
    "queue_wait_s",
    "duration_s",
    "utterances",
    "items",
    "errors",
    "key",
    "client",
    "user_agent",
    "trace_id",
)
"""Names of the fields, in their order."""
SHARED = ("path", "key", "client", "user_agent")
"""Fields of a connection that the lines of its utterances repeat."""
SHORT = 4
"""Digits behind the point of seconds."""
FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\[\]-]{0,127}")
FAILED = frozenset({"failed", "cut_off"})
"""Outcomes that are the server's fault, whose lines are warnings."""
REFUSED_STATUS, FAULT_STATUS = 400, 500


@dataclass
class RequestLine:
    """The facts about one request, connection, utterance or item. Only the event loop's thread uses it."""

    event: Event
    fields: dict[str, object]
    span: Span
    tracer: Tracer = field(default_factory=NoOpTracer)
    parent: "RequestLine | None" = None
    moments: Moments = field(default_factory=Moments)
    route: str | None = None
    """Pattern of the route that the path was found by."""
    told: Throttle = field(default_factory=lambda: Throttle(log, logging.INFO))
    """Writes the errors of a connection that continues."""
    _children: dict[str, int] = field(default_factory=dict)
    _is_over: bool = False

    def __post_init__(self) -> None:
        context = self.span.get_span_context()
        if context.is_valid:
            self.fields["trace_id"] = f"{context.trace_id:032x}"

    @property
    def root(self) -> "RequestLine":
        """The line of the request or connection that this one belongs to."""
        return self if self.parent is None else self.parent.root

    def note(self, **fields: object) -> None:
        """Adds fields, or replaces them. None takes one away."""
        self.fields.update(fields)

    def note_error(self, code: str | None, param: str | None) -> None:
        """Adds the reason of a refusal. A name that cannot be a field's own may be part of a text, and is left out."""
        known = param is not None and FIELD_NAME.fullmatch(param)
        self.note(code=code, param=param if known else None)

    def note_first_audio(self) -> None:
        """Adds the seconds from the beginning to the first audio, which is now."""
        if self.moments.first_audio_s is None:
            self.moments.first_audio_s = time.monotonic()
            self.note(first_audio_s=self.moments.first_audio_s - self.moments.started_s)

    def note_queue(self, queued_s: float, wait_s: float) -> None:
        """Adds the seconds that the first text waited for a row, since `queued_s` of `time.monotonic`."""
        self.moments.queued_s, self.moments.queue_wait_s = queued_s, wait_s
        self.note(queue_wait_s=wait_s)

    def begin(self, event: Literal["utterance", "item"], **fields: object) -> "RequestLine":
        """A line for a part of this request or connection."""
        root = self.root
        number = root._children.get(event, 0)
        root._children[event] = number + 1
        shared = {name: root.fields[name] for name in SHARED if name in root.fields}
        span = begin_span(root.tracer, event, parent=root.span)
        return RequestLine(event, {**shared, event: number, **fields}, span, root.tracer, root)

    def tell_error(self, code: str | None, param: str | None) -> None:
        """Writes a line about a message that is refused on a connection, which continues; at most one a second."""
        root = self.root
        errors = root.fields.get("errors", 0)
        root.fields["errors"] = (errors if isinstance(errors, int) else 0) + 1
        about = RequestLine(
            "connection", {name: root.fields[name] for name in SHARED if name in root.fields}, root.span
        )
        about.note_error(code, param)
        fields = {**about.written(), "event": "error"}
        root.told.tell("%s: error %s", fields.get("path"), fields.get("code"), extra=_extra(fields, ("path", "code")))

    def written(self) -> dict[str, object]:
        """All fields as they are written, in their order. Those that are not known are left out."""
        known: Mapping[str, object] = {"event": self.event, **self.fields, **self._counts()}
        return {name: _written(known[name]) for name in FIELDS if known.get(name) is not None}

    def _counts(self) -> dict[str, object]:
        return {f"{event}s": number for event, number in self._children.items()}

    def end(self, level: int = logging.INFO) -> None:
        """Writes the line, and ends the span. Further calls do nothing."""
        if self._is_over:
            return
        self._is_over = True
        self.moments.ended_s = time.monotonic()
        self.note(duration_s=self.moments.ended_s - self.moments.started_s)
        if self.parent is not None:
            self._add_to_connection(self.parent)
        fields = self.written()
        end_span(self.tracer, self.span, fields, self.moments, self.route)
        status = fields.get("status", 0)
        if fields.get("outcome") in FAILED or (isinstance(status, int) and status == FAULT_STATUS):
            level = max(level, logging.WARNING)
        message, shown = HEADLINES[self.event]
        if self.event == "connection" and isinstance(status, int) and status >= REFUSED_STATUS:
            message, shown = REFUSED
        values = dict.fromkeys(shown, "-") | fields
        log.log(level, message, values, extra=_extra(fields, shown))

    def _add_to_connection(self, root: "RequestLine") -> None:
        for name in ("chars", "audio_s"):
            value, sum_so_far = self.fields.get(name), root.fields.get(name)
            if isinstance(value, int | float):
                root.fields[name] = value + (sum_so_far if isinstance(sum_so_far, int | float) else 0)

    @contextmanager
    def current(self) -> Iterator["RequestLine"]:
        """Makes this the current line of the block, and of the tasks that it starts."""
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)


HEADLINES: dict[Event, tuple[str, tuple[str, ...]]] = {
    "request": ("%(method)s %(path)s %(status)s in %(duration_s)s s", ("method", "path", "status", "duration_s")),
    "connection": ("%(path)s closed with %(close_code)s after %(duration_s)s s", ("path", "close_code", "duration_s")),
    "utterance": (
        "%(path)s: utterance %(utterance)s %(outcome)s after %(duration_s)s s",
        ("path", "utterance", "outcome", "duration_s"),
    ),
    "item": ("%(path)s: item %(item)s %(outcome)s after %(duration_s)s s", ("path", "item", "outcome", "duration_s")),
}
"""The message of each line, and the fields in it."""
REFUSED = ("%(path)s refused with %(status)s after %(duration_s)s s", ("path", "status", "duration_s"))
"""The same of a connection whose handshake is refused."""

_current: ContextVar[RequestLine | None] = ContextVar("request_line", default=None)


def current_line() -> RequestLine:
    """The line of the current request, connection, utterance or item; one that is never written if there is none."""
    return _current.get() or RequestLine("request", {}, begin_span(NoOpTracer(), "none"))


def note(**fields: object) -> None:
    """Adds fields to the current line."""
    if (line := _current.get()) is not None:
        line.note(**fields)


def note_error(code: str | None, param: str | None) -> None:
    """Adds the reason of a refusal to the current line."""
    if (line := _current.get()) is not None:
        line.note_error(code, param)


def note_body(body: object) -> None:
    """Adds the fields of a request's body before it has been checked, for the line of its refusal."""
    if not isinstance(body, Mapping):
        return
    voice = body.get("voice")
    voice = voice.get("id") if isinstance(voice, Mapping) else voice
    named = {"model": body.get("model", body.get("model_id")), "voice": voice, "format": body.get("response_format")}
    note(**{name: value for name, value in named.items() if isinstance(value, str)})
    text = body.get("input", body.get("text"))
    if isinstance(text, str):
        note(chars=len(text))


def _extra(fields: dict[str, object], shown: tuple[str, ...]) -> dict[str, object]:
    return {"fields": fields, "tail": tuple(name for name in fields if name not in (*shown, "event"))}


def _written(value: object) -> object:
    match value:
        case bool() | int():
            return value
        case float():
            return round(value, SHORT)
        case _:
            return for_log(str(value))
