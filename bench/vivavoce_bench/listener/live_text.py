"""One request over a WebSocket. The text is sent word by word while the speech arrives."""

import asyncio
import json
import re
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from vivavoce_client.live_transport import Connect, ConnectionLost, LiveConnection, open_websocket, socket_url

from vivavoce_bench.listener.reception import Incomplete, Reception
from vivavoce_bench.listener.servers import LiveProtocol, Target

IDEOGRAPHS = r"\u3000-\u9fff\uf900-\uffef"
WORD = re.compile(rf"[{IDEOGRAPHS}]\s*|[^\s{IDEOGRAPHS}]+\s*")
"""A word with the space after it. In a script without spaces, one character."""


def words(text: str) -> list[str]:
    """Splits a text into words that join to it. A space before the first word belongs to that word."""
    pieces = WORD.findall(text)
    return [text[: len(text) - len(text.lstrip())] + pieces[0], *pieces[1:]] if pieces else []


class LiveSpeaker:
    """Each request has a connection of its own, opened and configured before time zero."""

    def __init__(self, target: Target, connect: Connect | None = None) -> None:
        live = target.server.live
        assert live is not None, "checked by Target"
        self._live: LiveProtocol = live
        self._target = target
        self._connect = connect or partial(open_websocket, subprotocol=live.subprotocol)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        pass

    async def speak(self, text: str, seed: int, reception: Reception) -> None:
        try:
            connection = await self._connect(socket_url(self._target.url, self._live.path), self._target.headers)
        except ConnectionLost as error:
            raise Incomplete(str(error)) from error
        try:
            await self._open(connection, seed)
            sending = asyncio.create_task(self._send(connection, text, reception))
            try:
                await self._receive(connection, reception)
                if not sending.done():
                    raise Incomplete("the speech ended before its text")
            finally:
                sending.cancel()
                with suppress(asyncio.CancelledError, ConnectionLost):
                    await sending
        except ConnectionLost as error:
            raise Incomplete(f"the connection was closed: {error}") from error
        except (ValueError, KeyError) as error:
            raise Incomplete(f"the answer cannot be read: {error!r}") from error
        finally:
            await connection.close()

    async def _open(self, connection: LiveConnection, seed: int) -> None:
        if self._live.greeting is not None:
            await _wait_for(connection, self._live.greeting)
        await connection.send(json.dumps(self._target.config(seed), ensure_ascii=False))
        if self._live.ready is not None:
            await _wait_for(connection, self._live.ready)

    async def _send(self, connection: LiveConnection, text: str, reception: Reception) -> None:
        loop = asyncio.get_running_loop()
        pieces = words(text)
        started_s = loop.time()
        for number, piece in enumerate(pieces):
            # Timed by the clock instead of by pauses, so that the time of each send does not add up.
            await asyncio.sleep(started_s + number * self._target.word_s - loop.time())
            reception.mark_text()
            await connection.send(self._live.text_message(number, piece))
        await connection.send(self._live.end_message(len(pieces)))

    async def _receive(self, connection: LiveConnection, reception: Reception) -> None:
        while True:
            message = await connection.receive()
            if isinstance(message, bytes):
                reception.add(message)
                continue
            event = _parse(message)
            if event["type"] == self._live.done:
                if event.get("cancelled") or event.get("stop_reason", "stop") != "stop":
                    raise Incomplete(f"the speech did not end by itself: {message}")
                reception.end()
                return


async def _wait_for(connection: LiveConnection, kind: str) -> None:
    message = await connection.receive()
    event = _parse(message) if isinstance(message, str) else {"type": "audio"}
    if event["type"] != kind:
        raise Incomplete(f"{event['type']} came instead of {kind}")


def _parse(message: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(message)
    if event["type"] == "error":
        raise Incomplete(f"the server refused: {event.get('message') or event.get('error')}")
    return event
