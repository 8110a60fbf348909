"""Request ids. The middleware is also the last place that catches unexpected exceptions.

The client sends the id of its request, or receives one.
"""

import ipaddress
import logging
import re
import time
import uuid
from contextvars import ContextVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vivavoce_server.errors import bug_response, descriptors_response, is_out_of_descriptors
from vivavoce_server.logs import Throttle, for_log, request_id
from vivavoce_server.loop_watch import activity

log = logging.getLogger(__name__)

REQUEST_ID_HEADER = "X-Request-ID"
POLLED_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Paths that machines request every few seconds. Their log lines have level DEBUG."""
WELL_FORMED = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
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
        self._told = Throttle(log, logging.WARNING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        # A malformed id is replaced. Repeating it would let a client write into logs and headers.
        name = given if WELL_FORMED.fullmatch(given) else uuid.uuid4().hex
        token = request_id.set(name)
        activity.set(for_log(f"{scope['method']} {scope['path']}"))
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
        except Exception as error:
            if is_out_of_descriptors(error):
                self._told.tell("a request found no descriptor left for a file")
                response = descriptors_response()
            else:
                log.exception("a bug")
                response = bug_response()
            # A response that has begun stays unfinished, so that the ASGI server cuts the connection.
            if status is None:
                await response(scope, receive, send_named)
        finally:
            fields = {
                "method": for_log(scope["method"]),
                "path": for_log(scope["path"]),
                "status": status,
                "duration_s": round(time.monotonic() - started_s, 4),
            }
            level = logging.DEBUG if scope["path"] in POLLED_PATHS else logging.INFO
            log.log(level, "%(method)s %(path)s %(status)s in %(duration_s)s s", fields, extra={"fields": fields})
            request_id.reset(token)
