"""The path under which a proxy shows the server, such as /speech: --root-path.

The proxy may take the prefix off or leave it. Routes see the path without it, and addresses in answers have it.
"""

import re

from starlette.types import ASGIApp, Receive, Scope, Send

FORM = re.compile(r"(/[A-Za-z0-9._~-]+)*")
OWN = ("/v1", "/v2")


def checked_root_path(path: str) -> str:
    """Returns the path without a slash at its end. Raises ValueError if it is none, or begins like a route."""
    path = path.rstrip("/")
    if not FORM.fullmatch(path) or "/." in path:
        raise ValueError("must begin with / and have letters, digits, and . _ ~ - alone, such as /speech")
    if path.startswith(OWN) and path[3:4] in ("", "/"):
        raise ValueError(f"must not begin with {path[:3]}, where the server's own routes are; such as /speech")
    return path


class RootPathMiddleware:
    """Tells the app its prefix, and gives every path the form that ASGI asks for: with the prefix in front."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            path = scope["path"]
            has_prefix = path == self._root_path or path.startswith(f"{self._root_path}/")
            if path.startswith("/") and not has_prefix:
                path = self._root_path + path
            scope = {**scope, "root_path": self._root_path, "path": path}
        await self._app(scope, receive, send)
