"""Size limits of a client's messages and bodies.

A body that is too large is refused when its length is announced, or else as soon as it exceeds the limit.
"""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vivavoce_server.errors import http_error_response

MAX_MESSAGE_BYTES = 4 * 2**20
"""Maximum size of a WebSocket message: 30 s of reference audio in base64 fit."""


class BodyLimitMiddleware:
    """Answers a body above `max_body_bytes` with 413. Such a body is never held in memory as a whole."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        if length.isdigit() and int(length) > self._max_body_bytes:
            response = http_error_response(413, f"The body is larger than {self._max_body_bytes} bytes")
            await response(scope, receive, send)
            return
        received_bytes = 0

        async def receive_limited() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._max_body_bytes:
                raise HTTPException(413, f"The body is larger than {self._max_body_bytes} bytes")
            return message

        await self._app(scope, receive_limited, send)
