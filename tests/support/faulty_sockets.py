"""The sockets of the faulty server: OpenAI's Realtime for given text, and Vivavoce's live text."""

import asyncio
import base64
import itertools
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

if TYPE_CHECKING:
    from tests.support.faulty_server import FaultyServer

RESPONSE = "resp_1"
PIECE = b"\x10\x20" * 2400
LONG_CHARS = 300


class FaultySockets:
    """The ASGI app for WebSockets."""

    def __init__(self, server: "FaultyServer") -> None:
        self._server = server
        self._numbers = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = WebSocket(scope, receive, send)
        with suppress(WebSocketDisconnect):
            await self._serve(socket)

    async def _serve(self, socket: WebSocket) -> None:
        breaks, key = self._server.breaks, self._server.key
        path, origin = socket.url.path, socket.headers.get("origin")
        if key is None and origin and not breaks("sockets.foreign_page"):
            await socket.send_denial_response(JSONResponse({}, 403))
        elif path == "/v1/audio/speech/stream":
            await socket.accept()
            await self._live(socket)
        elif path != "/v1/realtime":
            await socket.send_denial_response(JSONResponse({}, 403 if breaks("sockets.unknown_path") else 404))
        elif (
            key is not None
            and socket.headers.get("authorization") != f"Bearer {key}"
            and not breaks("sockets.wrong_key")
        ):
            await socket.accept()
            await self._send(socket, "error", error={"message": "wrong key", "code": "invalid_api_key"})
            await socket.close(1008)
        else:
            await socket.accept()
            await self._realtime(socket)

    async def _send(self, socket: WebSocket, kind: str, **fields: object) -> None:
        event_id = {} if self._server.breaks("sockets.ids") else {"event_id": f"event_{next(self._numbers)}"}
        await socket.send_text(json.dumps({"type": kind, **event_id, **fields}))

    async def _realtime(self, socket: WebSocket) -> None:
        breaks = self._server.breaks
        await self._send(socket, "session.created", **({} if breaks("sockets.created") else {"session": {}}))
        speaking: asyncio.Task[None] | None = None
        while True:
            text = await socket.receive_text()
            try:
                event = json.loads(text)
            except ValueError:
                event = None
            kind = event.get("type") if isinstance(event, dict) else None
            if kind == "session.update":
                await self._send(socket, "session.updated", **({} if breaks("sockets.updated") else {"session": {}}))
            elif kind == "response.create":
                speaking = asyncio.create_task(self._speak(socket, event["response"]["input"][0]["content"][0]["text"]))
            elif kind == "response.cancel" and speaking is not None and not speaking.done():
                speaking.cancel()
                status = "incomplete" if breaks("sockets.cancel") else "cancelled"
                await self._send(socket, "response.done", response={"id": RESPONSE, "status": status})
            elif kind == "response.cancel":
                code = "no" if breaks("sockets.cancel_nothing") else "response_cancel_not_active"
                await self._send(socket, "error", error={"message": "Cancellation failed", "code": code})
            elif breaks("sockets.nonsense"):
                await socket.close(1002)
                return
            else:
                await self._send(socket, "error", error={"message": "no such event", "code": "invalid_value"})

    async def _speak(self, socket: WebSocket, text: str) -> None:
        ids: dict[str, Any] = {"response_id": RESPONSE}
        await self._send(socket, "response.created", response={"id": RESPONSE})
        if not self._server.breaks("sockets.speech"):
            await self._send(socket, "response.output_item.added", **ids)
        for _ in range(2):
            await self._send(socket, "response.output_audio.delta", delta=base64.b64encode(PIECE).decode(), **ids)
        if len(text) > LONG_CHARS:
            await asyncio.Event().wait()  # it takes for ever, unless it is cancelled
        await self._send(socket, "response.output_audio.done", **ids)
        await self._send(socket, "response.done", response={"id": RESPONSE, "status": "completed"})

    async def _live(self, socket: WebSocket) -> None:
        breaks = self._server.breaks
        while True:
            kind = json.loads(await socket.receive_text())["type"]
            if kind == "session.config":
                await self._send(socket, "session.created")
            elif kind == "input.done":
                await self._send(socket, "audio.start")
                await socket.send_bytes(b"" if breaks("sockets.live_text") else PIECE)
                await self._send(socket, "audio.done")
            elif kind == "input.cancel" and breaks("sockets.live_cancel"):
                await self._send(socket, "error", error={"message": "nothing to cancel"})
            elif kind == "session.close":
                await self._send(socket, "session.done")
                await socket.close()
                return
