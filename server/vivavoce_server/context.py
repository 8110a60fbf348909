"""One request's name: taken from or given to the client, on every log line. Also the last line of defence for bugs."""

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

log = logging.getLogger(__name__)

REQUEST_ID_HEADER = "X-Request-ID"
POLLED_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Asked for every few seconds by machines: not worth a line each."""
WELL_FORMED = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
request_id: ContextVar[str] = ContextVar("request_id", default="-")


class RequestContextMiddleware:
    """Names each request, logs one line at its end, and turns an unforeseen exception into a logged 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        # What does not look like an id is not repeated: it would let a client write into logs and headers.
        name = given if WELL_FORMED.fullmatch(given) else uuid.uuid4().hex
        token = request_id.set(name)
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
            # A response that has begun is left without its end, so that the ASGI server cuts it off.
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
    """Gives every record the id of the request that it was logged in."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = request_id.get()
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

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
    """All of the process's logging, as lines of text or of JSON."""
    handler = logging.StreamHandler()
    handler.addFilter(RequestIdFilter())
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Its news ("started server process") are told better elsewhere; its warnings are not.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    # It would log each address that a client sent, with whatever secret is in it.
    logging.getLogger("httpx").setLevel(logging.WARNING)
