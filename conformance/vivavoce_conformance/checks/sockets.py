"""Sockets, for servers that have them: OpenAI's Realtime protocol for given text, and live text as an extension."""

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from vivavoce_conformance.rules import PRACTICE, Group
from vivavoce_conformance.sound import level_db, samples_of
from vivavoce_conformance.target import SHORT_TEXT, Failed, Skipped, Target, printable

SOCKETS = Group("sockets", "sockets, if the server has them")
REALTIME = "OpenAI API reference, Realtime"
CLIENTS = "LiveKit, Pipecat, Open WebUI: what their Realtime clients wait for"
MAX_EVENTS = 20_000
ABSENT_STATUSES = (403, 404, 405, 426, 501)
ORDER = (
    "response.created",
    "response.output_item.added",
    "response.output_audio.delta",
    "response.output_audio.done",
    "response.done",
)
"""Events that clients wait for, in their order. Others may stand between them."""
Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Socket:
    """An open connection, whose messages are JSON objects."""

    connection: ClientConnection

    async def send(self, kind: str, **fields: object) -> None:
        await self.connection.send(json.dumps({"type": kind, **fields}))

    async def receive(self) -> Event | bytes:
        """The next message: an event, or bytes. Raises Failed for other text."""
        message = await self.connection.recv()
        if isinstance(message, bytes):
            return message
        try:
            event = json.loads(message)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            raise Failed(f"a message is no JSON object with a type: {printable(message[:80])}")
        return event

    async def until(self, *kinds: str) -> list[Event]:
        """The events up to one of these types, it included. Raises Failed for an error that was not waited for."""
        events: list[Event] = []
        while len(events) < MAX_EVENTS:
            event = await self.receive()
            if isinstance(event, bytes):
                raise Failed("a binary message in the Realtime protocol")
            events.append(event)
            if event["type"] in kinds:
                return events
            if event["type"] == "error":
                raise Failed(f"an error instead of {kinds[0]}: {printable(json.dumps(event)[:200])}")
        raise Failed(f"{MAX_EVENTS} events without {kinds[0]}")

    async def say(self, text: str) -> None:
        """Asks for the speech of a text, as Open WebUI does."""
        part = {"type": "input_text", "text": text}
        item = {"type": "message", "role": "user", "content": [part]}
        fields = {"conversation": "none", "output_modalities": ["audio"], "tools": [], "tool_choice": "none"}
        await self.send("response.create", response={**fields, "input": [item]})


@asynccontextmanager
async def dial(target: Target, path: str, key: str | None, origin: Origin | None = None) -> AsyncIterator[Socket]:
    """Yields a connection that is bounded in time by the target. Raises what `websockets` raises."""
    headers = target.authorization(key)
    async with connect(
        target.socket_base + path,
        additional_headers=headers,
        proxy=None,
        open_timeout=target.timeout_s,
        close_timeout=1,
        max_size=2**24,
        origin=origin,
    ) as connection:
        yield Socket(connection)


@asynccontextmanager
async def realtime(target: Target) -> AsyncIterator[Socket]:
    """Yields a Realtime connection. Raises Skipped if the server has none."""
    try:
        async with (
            asyncio.timeout(target.timeout_s),
            dial(target, f"/realtime?model={target.model}", target.key) as socket,
        ):
            yield socket
    except InvalidStatus as error:
        status = error.response.status_code
        if status in ABSENT_STATUSES:
            raise Skipped(f"the server has no Realtime socket: {status}") from error
        raise Failed(f"the handshake of /realtime: status {status}") from error


async def greeted(socket: Socket) -> Event:
    """Receives the first event, which must be session.created."""
    event = await socket.receive()
    if isinstance(event, bytes) or event["type"] != "session.created":
        raise Failed(f"the first message is {event if isinstance(event, bytes) else event['type']!r:.60}")
    return event


@SOCKETS.check("must", f"{REALTIME}; {CLIENTS}", "the first event is session.created, with the session")
async def created(target: Target) -> None:
    async with realtime(target) as socket:
        event = await greeted(socket)
        if not isinstance(event.get("session"), dict):
            raise Failed("session.created has no session")


@SOCKETS.check("must", f"{REALTIME}; {CLIENTS}", "session.update is answered with session.updated")
async def updated(target: Target) -> None:
    async with realtime(target) as socket:
        await greeted(socket)
        output = {"format": {"type": "audio/pcm", "rate": 24000}, "voice": target.voice}
        given = {"turn_detection": None, "transcription": None}
        session = {"type": "realtime", "output_modalities": ["audio"], "audio": {"input": given, "output": output}}
        await socket.send("session.update", session={**session, "instructions": "Read aloud.", "tools": []})
        event = (await socket.until("session.updated"))[-1]
        if not isinstance(event.get("session"), dict):
            raise Failed("session.updated has no session")


async def spoken(target: Target) -> list[Event]:
    """The events of one response. Raises Failed, Skipped."""
    async with realtime(target) as socket:
        await greeted(socket)
        await socket.say(SHORT_TEXT)
        return await socket.until("response.done")


@SOCKETS.check("must", f"{REALTIME}; {CLIENTS}", "a given text is spoken: events in order, samples, status completed")
async def speech(target: Target) -> None:
    events = await spoken(target)
    kinds = [event["type"] for event in events]
    if missing := [kind for kind in ORDER if kind not in kinds]:
        raise Failed(f"the response has no {', '.join(missing)}")
    if (places := [kinds.index(kind) for kind in ORDER]) != sorted(places):
        raise Failed(f"the order of the response is {', '.join(dict.fromkeys(kinds))}")
    status = events[-1].get("response", {}).get("status")
    if status != "completed":
        raise Failed(f"the status of response.done is {status!r}")
    try:
        deltas = [event["delta"] for event in events if event["type"] == "response.output_audio.delta"]
        audio = b"".join(base64.b64decode(delta, validate=True) for delta in deltas)
    except (KeyError, TypeError, binascii.Error):
        raise Failed("a response.output_audio.delta has no base64 in delta") from None
    if not audio or len(audio) % 2 or level_db(samples_of(audio)) < -60:
        raise Failed(f"the deltas hold {len(audio)} bytes, which are no audible 16-bit samples")


@SOCKETS.check("must", f"{REALTIME}; Pipecat's types", "every event has an event_id, and those of a response its id")
async def ids(target: Target) -> None:
    events = await spoken(target)
    if without := sorted({event["type"] for event in events if not event.get("event_id")}):
        raise Failed(f"no event_id on {', '.join(without)}")
    response = next(
        (event.get("response", {}).get("id") for event in events if event["type"] == "response.created"), None
    )
    parts = [event for event in events if event["type"].startswith(("response.output_", "response.content_part"))]
    if not response or any(event.get("response_id") != response for event in parts):
        raise Failed("the events of a response do not carry the response_id of response.created")


@SOCKETS.check(
    "must", f"{REALTIME}, response.cancel", "response.cancel ends a response: status cancelled, and no audio behind it"
)
async def cancel(target: Target) -> None:
    async with realtime(target) as socket:
        await greeted(socket)
        await socket.say(" ".join([SHORT_TEXT] * 60))
        begun = await socket.until("response.output_audio.delta")
        created = next((event for event in begun if event["type"] == "response.created"), {})
        await socket.send("response.cancel", response_id=created.get("response", {}).get("id"))
        events = await socket.until("response.done")
        status = events[-1].get("response", {}).get("status")
        if status == "completed":
            raise Skipped("the speech was complete before the cancellation came")
        if status != "cancelled":
            raise Failed(f"the status of a cancelled response is {status!r}")
        await socket.say(SHORT_TEXT)
        after = await socket.until("response.created", "response.output_audio.delta")
        if after[-1]["type"] != "response.created":
            raise Failed("audio came behind the end of a cancelled response")


@SOCKETS.check(
    "must", f"{REALTIME}; Pipecat, LiveKit", "a cancellation of nothing is the error response_cancel_not_active"
)
async def cancel_nothing(target: Target) -> None:
    async with realtime(target) as socket:
        await greeted(socket)
        await socket.send("response.cancel")
        error = (await socket.until("error"))[-1].get("error")
        if not isinstance(error, dict) or error.get("code") != "response_cancel_not_active":
            raise Failed(f"the error is {printable(json.dumps(error)[:160])}")


@SOCKETS.check("must", f"{REALTIME}, error", "what is no event is an error, and the connection stays")
async def nonsense(target: Target) -> None:
    async with realtime(target) as socket:
        await greeted(socket)
        for message in ("{", "[]", '{"type": "no.such.event", "event_id": "mine"}'):
            await socket.connection.send(message)
            error = (await socket.until("error"))[-1].get("error")
            if not isinstance(error, dict) or not isinstance(error.get("message"), str):
                raise Failed(f"the error of {message} has no message")
        await socket.send("session.update", session={"type": "realtime"})
        await socket.until("session.updated")


@SOCKETS.check("must", "OWASP API Security 2023, API2", "a Realtime socket with a wrong key does nothing")
async def wrong_key(target: Target) -> None:
    if target.key is None:
        raise Skipped("no --key: the server may have none")
    async with realtime(target) as socket:
        await greeted(socket)
    try:
        async with (
            asyncio.timeout(target.timeout_s),
            dial(target, f"/realtime?model={target.model}", "sk-wrong-7f3a") as socket,
        ):
            await socket.say(SHORT_TEXT)
            first = await socket.receive()
            if isinstance(first, bytes) or first["type"] != "error":
                raise Failed(
                    f"a wrong key is answered with {first if isinstance(first, bytes) else first['type']!r:.60}"
                )
    except InvalidStatus as error:
        if error.response.status_code not in (401, 403):
            raise Failed(f"the handshake with a wrong key: status {error.response.status_code}") from error
    except ConnectionClosed:
        return


@SOCKETS.check("should", PRACTICE, "a socket at an unknown path is a 404, which tells it from a wrong key")
async def unknown_path(target: Target) -> None:
    async with realtime(target) as socket:
        await greeted(socket)
    try:
        async with dial(target, "/no/such/socket", target.key):
            raise Failed("an unknown path accepts a socket")
    except InvalidStatus as error:
        if error.response.status_code != 404:
            raise Failed(f"an unknown path refuses a socket with {error.response.status_code}") from error


@SOCKETS.check(
    "should", "OWASP WebSocket Security Cheat Sheet", "pages of other sites open no socket of a server without keys"
)
async def foreign_page(target: Target) -> None:
    if target.key is not None:
        raise Skipped("the key shows that a socket is meant")
    async with realtime(target) as socket:
        await greeted(socket)
    try:
        path = f"/realtime?model={target.model}"
        async with (
            asyncio.timeout(target.timeout_s),
            dial(target, path, None, origin=Origin("https://evil.example")) as socket,
        ):
            event = await socket.receive()
            if isinstance(event, bytes) or event["type"] != "error":
                raise Failed("a page of https://evil.example opens the socket")
    except (InvalidStatus, ConnectionClosed):
        return


@asynccontextmanager
async def live(target: Target) -> AsyncIterator[Socket]:
    """Yields a configured socket for live text. Raises Skipped if this kind of server has none."""
    if target.dialect.live is None:
        raise Skipped("OpenAI's API has no socket for live text; --server names a kind of server that has one")
    async with asyncio.timeout(target.timeout_s), dial(target, target.dialect.live, target.key) as socket:
        await socket.send("session.config", model=target.model, voice=target.voice)
        event = await socket.receive()
        if isinstance(event, bytes) or event["type"] != "session.created":
            raise Failed(f"the answer to session.config is {event!r:.120}")
        yield socket


@SOCKETS.check("extension", "Vivavoce, server/README.md", "live text is spoken: audio.start, samples, audio.done")
async def live_text(target: Target) -> None:
    async with live(target) as socket:
        for word in SHORT_TEXT.split(" "):
            await socket.send("input.text", text=word + " ")
        await socket.send("input.done")
        kinds, audio = [], b""
        while "audio.done" not in kinds:
            message = await socket.receive()
            if isinstance(message, bytes):
                audio += message
            elif message["type"] == "error":
                raise Failed(f"an error: {printable(json.dumps(message)[:160])}")
            else:
                kinds.append(message["type"])
        if kinds != ["audio.start", "audio.done"] or level_db(samples_of(audio)) < -60:
            raise Failed(f"{', '.join(kinds)} and {len(audio)} bytes of samples")


@SOCKETS.check("extension", "Vivavoce, server/README.md", "input.cancel is never an error, and the connection stays")
async def live_cancel(target: Target) -> None:
    async with live(target) as socket:
        await socket.send("input.cancel")
        await socket.send("session.close")
        while (message := await socket.receive()) and (isinstance(message, bytes) or message["type"] != "session.done"):
            if not isinstance(message, bytes) and message["type"] == "error":
                raise Failed(f"an error: {printable(json.dumps(message)[:160])}")
