"""Refusals of a WebSocket in its handshake, as HTTP responses with OpenAI's error object.

Only what another attempt cannot change is refused here, because clients give such a server up. A connection that may
succeed later is accepted, told why, and closed with 1013.
"""

from collections.abc import Iterable

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIWebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from vivavoce_server.errors import ApiError, api_error_response, http_error_response

NOT_FOUND = 404


async def refuse(websocket: WebSocket, error: ApiError) -> None:
    """Answers the handshake with the error."""
    await websocket.send_denial_response(api_error_response(error))


def check_subprotocols(websocket: WebSocket, known: str | None = None) -> str | None:
    """The subprotocol to answer with: `known` if the client offers it, or None for a client that offers none.

    A browser fails without a reason if it offered subprotocols and none was chosen. An answer says the reason.

    Raises:
        ApiError: 400, the client offers others alone.
    """
    offered: list[str] = websocket.scope.get("subprotocols", [])
    if known in offered:
        return known
    if not offered:
        return None
    right = "offer none" if known is None else f"offer {known!r} among them"
    raise ApiError(400, f"None of the subprotocols offered is spoken here: {right}", None, "unknown_subprotocol")


def refuse_unknown_paths(app: FastAPI, sockets: Iterable[APIRouter]) -> None:
    """Makes the app answer 404 to a WebSocket at a path of none of the routers. Starlette would answer 403."""
    routes = (route for router in sockets for route in router.routes)
    paths = ", ".join(route.path for route in routes if isinstance(route, APIWebSocketRoute))
    http_not_found = app.router.default

    async def not_found(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await http_not_found(scope, receive, send)
            return
        message = f"There is no WebSocket at {scope['path']}; there are {paths}"
        await WebSocket(scope, receive, send).send_denial_response(http_error_response(NOT_FOUND, message))

    app.router.default = not_found
