"""HEAD on every GET route, and OPTIONS: what HTTP promises of any path (RFC 9110, 9.3)."""

from collections.abc import Iterable

from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class MethodsMiddleware:
    """Answers HEAD as GET without the body, and OPTIONS with the methods of the path.

    Preflights of CORS do not come here; they have a middleware of their own.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"] if scope["type"] == "http" else None
        if method == "OPTIONS" and (allowed := allowed_methods(scope)):
            await Response(status_code=204, headers={"Allow": allowed})(scope, receive, send)
        elif method == "HEAD":
            await self._app({**scope, "method": "GET"}, receive, _without_body(send))
        else:
            await self._app(scope, receive, send)


def allowed_methods(scope: Scope) -> str:
    """The methods of a path, as in an Allow header; empty if nothing is there. `*` is the server as a whole."""
    if scope["path"] == "*":
        return ", ".join((*METHODS, "HEAD", "OPTIONS"))
    routes: Iterable[BaseRoute] = scope["app"].routes
    routes = tuple(routes)
    found = [
        method
        for method in METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    head = ["HEAD"] if "GET" in found else []
    return ", ".join([*found, *head, "OPTIONS"]) if found else ""


def _without_body(send: Send) -> Send:
    async def send_head(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return send_head
