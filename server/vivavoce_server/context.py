"""Request ids, on every log line. The middleware is also the last place that catches unexpected exceptions.

The client sends the id of its request, or receives one.
"""

import ipaddress
import json
import logging
import re
import time
import uuid
from contextvars import ContextVar
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vivavoce_server.errors import bug_response
from vivavoce_server.loop_watch import activity, activity_of

log = logging.getLogger(__name__)

REQUEST_ID_HEADER = "X-Request-ID"
POLLED_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Paths that machines request every few seconds. Their log lines have level DEBUG."""
WELL_FORMED = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
request_id: ContextVar[str] = ContextVar("request_id", default="-")
client_address: ContextVar[str] = ContextVar("client_address", default="")
"""Address of the client of the current request, as `address_of` gives it."""
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
    """Gives each request an id, logs one line at its end, and turns an unexpected exception into a logged 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        # A malformed id is replaced. Repeating it would let a client write into logs and headers.
        name = given if WELL_FORMED.fullmatch(given) else uuid.uuid4().hex
        token = request_id.set(name)
        activity.set(activity_of(scope["method"], scope["path"]))
        client_address.set(address_of(scope["client"][0] if scope.get("client") else None))
        started_s = time.monotonic()
        status: int | None = None

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = name
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception:
            log.exception("a bug")
            # A response that has begun stays unfinished, so that the ASGI server cuts the connection.
            if status is None:
                await bug_response()(scope, receive, send_named)
        finally:
            fields = {
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "duration_s": round(time.monotonic() - started_s, 4),
            }
            level = logging.DEBUG if scope["path"] in POLLED_PATHS else logging.INFO
            log.log(level, "%(method)s %(path)s %(status)s in %(duration_s)s s", fields, extra={"fields": fields})
            request_id.reset(token)


class RequestIdFilter(logging.Filter):
    """Adds the current request's id to every log record."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = request_id.get()
        return True


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": record.__dict__["request_id"],
            **record.__dict__.get("fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s"


def log_to_stderr(level: str, as_json: bool) -> None:
    """Sends the process's logs to stderr, as lines of text or of JSON."""
    handler = logging.StreamHandler()
    handler.addFilter(RequestIdFilter())
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # uvicorn's information ("started server process") duplicates our own. Its warnings are useful.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # httpx would log each URL that a client sent, with any secret in it.
    logging.getLogger("httpx").setLevel(logging.WARNING)
