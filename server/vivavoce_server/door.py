"""The door: who calls, and by which name, is checked here before anything of a request is read, counted or stored.

It is one place for HTTP and for the handshakes of WebSockets:

    Host     must be a name that the operator meant (server_names.py), unless only callers with a key are served.
    Origin   On a server without keys, a page of another site may change and speak nothing. Its browser tells by Origin
             or Sec-Fetch-Site; other programs send neither. On a server with keys, the key shows that the request is
             deliberate: a browser adds no key by itself, and a page of another site that has one needs `cors_origins`.
    key      All but a few paths need one over HTTP. WebSockets have it in several places, also in their first message:
             live/connection.py asks for it before it counts them.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from vivavoce_server.access import Keyring, header_key
from vivavoce_server.config import ServerConfig
from vivavoce_server.errors import ApiError, api_error_response
from vivavoce_server.metrics import Metrics
from vivavoce_server.server_names import ANY, ServerNames

PROBES = frozenset({"/health", "/ready"})
"""Paths that answer to any name. Supervisors and balancers choose it as they like, and the answers tell nothing."""
PUBLIC = frozenset(
    {"/", "/docs", "/redoc", "/redoc/logo-mini.svg", "/openapi.json", "/asyncapi", "/asyncapi.json", *PROBES}
)
"""Paths that need no key: what a page or a supervisor loads before it has one."""
PUBLIC_FOLDERS = ("/playground/", "/reference/")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""
OWN_SITES = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site for a request by the server's own page, or by a person or an extension of the browser."""
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
SPEECH = ("/v1/audio/speech", "/v1/chat/completions", "/v1/text-to-speech/", "/dev/captioned_speech")
"""Beginnings of paths that speak. What is refused of them is counted as speech requests are."""
SCHEMES = frozenset({"http", "https", "ws", "wss"})


class DoorMiddleware:
    """Refuses a request or a WebSocket's handshake before a body is read. Puts the caller into the scope's state."""

    def __init__(self, app: ASGIApp, config: ServerConfig, keyring: Keyring, metrics: Metrics) -> None:
        self._app = app
        self._keyring = keyring
        self._metrics = metrics
        self._origins: Sequence[str] = config.cors_origins
        self._names = ServerNames(config.host, config.allowed_hosts)
        self._names_are_listed = bool(config.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            scope = with_path(scope)
            is_speech = scope.get("method") == "POST" and _route_path(scope).startswith(SPEECH)
            with self._metrics.admission() if is_speech else nullcontext():
                self._check(scope)
        except ApiError as error:
            await _refuse(error, scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Raises an ApiError for a request that may not come in."""
        connection = HTTPConnection(scope)
        is_socket = scope["type"] == "websocket"
        path = _route_path(scope)
        headers = connection.headers
        if "transfer-encoding" in headers and "content-length" in headers:
            # Two lengths are how a request is smuggled past a proxy that believes the other one.
            message = "A request has a Content-Length or a Transfer-Encoding, not both"
            raise ApiError(400, message, None, "invalid_request")
        if path not in PROBES:
            self._check_name(headers)
        if not self._keyring.wanted and (is_socket or scope["method"] not in SAFE_METHODS):
            self._check_origin(headers)
        if is_socket:
            return
        is_public = path in PUBLIC or path.startswith(PUBLIC_FOLDERS) or scope["method"] == "OPTIONS"
        if not is_public:
            connection.state.caller = self._keyring.find(header_key(connection))

    def _check_name(self, headers: Headers) -> None:
        host = headers.get("host")
        # Only HTTP/1.0 has requests without a Host, and no browser sends them.
        if host is None or (self._keyring.wanted and not self._names_are_listed) or self._names.admit(host):
            return
        message = f"This server does not answer to the name {host[:200]!r}; its operator names it by --allowed-hosts"
        raise ApiError(403, message, None, "host_not_allowed")

    def _check_origin(self, headers: Headers) -> None:
        origin = headers.get("origin")
        if ANY in self._origins or origin in self._origins:
            return
        # A browser sets Sec-Fetch-Site itself, also where a proxy gives the server another Host than the page's.
        # It sends none over plain http, but to this machine: Origin is then compared with Host.
        site = headers.get("sec-fetch-site")
        if site in OWN_SITES or (site is None and (origin is None or _is_origin_of(origin, headers.get("host")))):
            return
        page = "another site" if origin is None else origin[:200]
        message = f"Pages of {page} may not use this server; its operator lets them in by --cors-origins, or sets keys"
        raise ApiError(403, message, None, "origin_not_allowed")


def _is_origin_of(origin: str, host: str | None) -> bool:
    """True if the origin's host and port are those of a Host header, in which a proxy may write a default port."""
    scheme, _, authority = origin.lower().partition("://")
    return host is not None and authority == host.lower().removesuffix(DEFAULT_PORTS.get(scheme, ""))


def _route_path(scope: Scope) -> str:
    """The path without the prefix of --root-path."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def with_path(scope: Scope) -> Scope:
    """The scope with the path of a target that is a whole URL, whose host then counts (RFC 9112, 3.2.2).

    Raises:
        ApiError: 400, the target is neither a path nor a URL.
    """
    target: bytes = scope.get("raw_path") or scope["path"].encode()
    if target.startswith(b"/") or (target == b"*" and scope.get("method") == "OPTIONS"):
        return scope
    scheme, separator, rest = target.partition(b"://")
    authority, slash, path = rest.partition(b"/")
    if scheme.decode("ascii").lower() not in SCHEMES or not separator or not authority or b"@" in authority:
        raise ApiError(400, "The request's target is neither a path nor a URL", None, "invalid_request")
    raw_path = slash + path or b"/"
    scope = {**scope, "path": unquote(raw_path.decode("ascii")), "raw_path": raw_path, "headers": [*scope["headers"]]}
    MutableHeaders(scope=scope)["host"] = authority.decode("ascii")
    return scope


async def _refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    response = api_error_response(error)
    if scope["type"] == "http":
        if error.status == 400:
            response.headers["Connection"] = "close"  # where this request ends is in doubt
        await response(scope, receive, send)
        return
    await WebSocket(scope, receive, send).send_denial_response(response)
