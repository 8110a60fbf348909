"""Spans of OpenTelemetry as this server writes them, and the caller's place in its trace.

Attributes follow OpenTelemetry's conventions (http.*, gen_ai.*, client.*, user_agent.*); others begin with `vivavoce.`.
No attribute holds a text, an address's query or a key.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers

PROVIDER = "vivavoce"
MAX_HEADER_CHARS = 512
"""Longest traceparent, and longest tracestate."""
SERVER_FAULTS = 500
OPERATION = "text_to_speech"
ATTRIBUTES = {
    "method": "http.request.method",
    "path": "url.path",
    "status": "http.response.status_code",
    "client": "client.address",
    "user_agent": "user_agent.original",
    "model": "gen_ai.request.model",
    "code": "error.type",
}
"""A line's field → the attribute that the conventions have for it. Others get the prefix `vivavoce.`."""
HIDDEN = frozenset({"trace_id", "event", "duration_s"})
"""Fields that a span has of itself."""
METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"})


@dataclass
class Moments:
    """Moments of `time.monotonic`, in seconds. `queued_s` and `queue_wait_s` are the engine's own."""

    started_s: float = field(default_factory=time.monotonic)
    started_ns: int = field(default_factory=time.time_ns)
    """The same moment as `started_s`, in nanoseconds since 1970."""
    queued_s: float | None = None
    queue_wait_s: float = 0.0
    first_audio_s: float | None = None
    ended_s: float = 0.0

    def ns(self, moment_s: float) -> int:
        """A moment in nanoseconds since 1970."""
        return self.started_ns + round((moment_s - self.started_s) * 1e9)


def parent_of(headers: Headers) -> Context:
    """The caller's place in its trace, empty without a well-formed one."""
    parents = headers.getlist("traceparent")
    states = headers.getlist("tracestate")
    if len(parents) != 1 or len(parents[0]) > MAX_HEADER_CHARS:
        return Context()
    carrier = {"traceparent": parents}
    if states and sum(map(len, states)) + len(states) - 1 <= MAX_HEADER_CHARS:
        carrier["tracestate"] = states
    return TraceContextTextMapPropagator().extract(carrier, Context())


def begin_span(
    tracer: Tracer, name: str, context: Context | None = None, parent: Span | None = None, started_ns: int | None = None
) -> Span:
    """A span that has begun now, or at `started_ns`. One without a parent is of the kind SERVER."""
    within = Context() if context is None else context
    if parent is not None:
        within = set_span_in_context(parent, within)
    kind = SpanKind.SERVER if parent is None else SpanKind.INTERNAL
    return tracer.start_span(name, within, kind, start_time=started_ns)


def end_span(
    tracer: Tracer, span: Span, fields: Mapping[str, object], moments: Moments, route: str | None = None
) -> None:
    """Ends a span with a line's fields as attributes, and gives it those of its queue, first audio and speech.

    `route` is the pattern that the path was found by.
    """
    if not span.is_recording():
        return
    for name, value in fields.items():
        if name not in HIDDEN:
            assert isinstance(value, str | bool | int | float)
            span.set_attribute(ATTRIBUTES.get(name, f"vivavoce.{name}"), value)
    method, status = fields.get("method"), fields.get("status")
    if isinstance(method, str):
        known = method if method in METHODS else "_OTHER"
        span.set_attribute("http.request.method", known)
        if known != method:
            span.set_attribute("http.request.method_original", method)
        kind = "HTTP" if known != method else method
        span.update_name(kind if route is None else f"{kind} {route}")
        if route is not None:
            span.set_attribute("http.route", route)
    if "outcome" in fields:
        _describe_speech(span, fields)
    failed = isinstance(status, int) and status >= SERVER_FAULTS
    if failed or fields.get("outcome") in ("failed", "cut_off"):
        span.set_status(Status(StatusCode.ERROR))
        if "code" not in fields:
            span.set_attribute("error.type", str(status if failed else fields["outcome"]))
    _add_parts(tracer, span, moments)
    span.end(moments.ns(moments.ended_s))


def _describe_speech(span: Span, fields: Mapping[str, object]) -> None:
    span.set_attribute("gen_ai.operation.name", OPERATION)
    span.set_attribute("gen_ai.provider.name", PROVIDER)
    span.set_attribute("gen_ai.output.type", "speech")
    if "method" not in fields and "model" in fields:
        span.update_name(f"{OPERATION} {fields['model']}")


def _add_parts(tracer: Tracer, span: Span, moments: Moments) -> None:
    first_s, ended_s = moments.first_audio_s, moments.ended_s
    began_s = moments.started_s
    if moments.queued_s is not None:
        began_s = moments.queued_s + moments.queue_wait_s
        _part(tracer, span, "queue", moments.ns(moments.queued_s), moments.ns(began_s))
    if first_s is not None:
        _part(tracer, span, "first_audio", moments.ns(min(began_s, first_s)), moments.ns(first_s))
        _part(tracer, span, "speech", moments.ns(first_s), moments.ns(ended_s))


def _part(tracer: Tracer, parent: Span, name: str, started_ns: int, ended_ns: int) -> None:
    begin_span(tracer, name, parent=parent, started_ns=started_ns).end(ended_ns)
