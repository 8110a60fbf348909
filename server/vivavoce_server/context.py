"""Request ids and log lines. The middleware is also the last place that catches unexpected exceptions.

The client sends the id of its request, or receives one.
"""

import ipaddress
import logging
import re
import uuid
from contextvars import ContextVar

from opentelemetry.trace import Tracer
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vivavoce_server.errors import bug_response, descriptors_response, is_out_of_descriptors
from vivavoce_server.logs import Throttle, for_log, request_id
from vivavoce_server.loop_watch import activity
from vivavoce_server.request_lines import RequestLine
from vivavoce_server.spans import begin_span, parent_of

log = logging.getLogger(__name__)

REQUEST_ID_HEADER = "X-Request-ID"
POLLED_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Paths that machines request every few seconds. Their log lines have level DEBUG."""
WELL_FORMED = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
client_address: ContextVar[str] = ContextVar("client_address", default="")
"""Address of the client of the current request, as `address_of` gives it."""
SWITCHING_PROTOCOLS = 101
NORMAL_CLOSE_CODE, NO_CLOSE_CODE = 1000, 1005
IPV6_PREFIX = 64
"""Bits of an IPv6 address that tell clients apart. One of them has all addresses with the same ones."""


def address_of(host: str | None) -> str:
    """The address by which a client without a key is told from others; "" if it is not known."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, IPV6_PREFIX), strict=False))


class RequestContextMiddleware:
    """Gives each request and each WebSocket an id and a line in the log, which is written at its end.

    An unexpected exception of a request becomes a logged 500.
    """

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer
        self._told = Throttle(log, logging.WARNING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        is_socket = scope["type"] == "websocket"
        given = "" if is_socket else Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        # A malformed id is replaced. Repeating it would let a client write into logs and headers.
        name = given if WELL_FORMED.fullmatch(given) else uuid.uuid4().hex
        token = request_id.set(name)
        activity.set(for_log(f"{'WebSocket' if is_socket else scope['method']} {scope['path']}"))
        client_address.set(address_of(scope["client"][0] if scope.get("client") else None))
        line = self._begin(scope)
        try:
            with line.current():
                serve = self._serve_socket if is_socket else self._serve_http
                await serve(scope, receive, _named(send, name, line), line)
        finally:
            line.route = getattr(scope.get("route"), "path", None)
            line.end(logging.DEBUG if scope["path"] in POLLED_PATHS else logging.INFO)
            request_id.reset(token)

    def _begin(self, scope: Scope) -> RequestLine:
        is_socket = scope["type"] == "websocket"
        headers = Headers(scope=scope)
        method = "GET" if is_socket else scope["method"]
        span = begin_span(self._tracer, method, parent_of(headers))
        span.set_attribute("url.scheme", scope.get("scheme", "http"))
        span.set_attribute("network.protocol.version", scope.get("http_version", "1.1"))
        fields: dict[str, object] = {
            "method": method,
            "path": scope["path"],
            "client": scope["client"][0] if scope.get("client") else None,
            "user_agent": headers.get("user-agent"),
        }
        return RequestLine("connection" if is_socket else "request", fields, span, self._tracer)

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send, line: RequestLine) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            if is_out_of_descriptors(error):
                self._told.tell("a request found no descriptor left for a file")
                response = descriptors_response()
            else:
                log.exception("a bug")
                response = bug_response()
            # A response that has begun stays unfinished, so that the ASGI server cuts the connection.
            if "status" not in line.fields:
                await response(scope, receive, send)

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send, line: RequestLine) -> None:
        async def receive_close() -> Message:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                line.fields.setdefault("close_code", message.get("code", NO_CLOSE_CODE))
            return message

        await self._app(scope, receive_close, send)


def _named(send: Send, name: str, line: RequestLine) -> Send:
    """Notes what the answer is, and gives it the request's id."""

    async def send_named(message: Message) -> None:
        match message["type"]:
            case "http.response.start" | "websocket.http.response.start":
                line.note(status=message["status"])
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = name
            case "websocket.accept":
                line.note(status=SWITCHING_PROTOCOLS)
            case "websocket.close":
                line.fields.setdefault("close_code", message.get("code", NORMAL_CLOSE_CODE))
        await send(message)

    return send_named
