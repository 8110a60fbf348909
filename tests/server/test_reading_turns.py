"""Messages that have arrived at once do not keep others from their turn."""

import asyncio
from typing import Any, cast

from vivavoce_server.live.connection import Connection
from vivavoce_server.live.surrogates import SurrogateHalves

MESSAGES = 50


class Burst:
    """A WebSocket with messages that need not be waited for."""

    async def receive(self) -> dict[str, Any]:
        return {"type": "websocket.receive", "text": '{"type": "input.text", "text": ""}'}


async def test_others_have_their_turn_between_messages() -> None:
    connection = Connection.__new__(Connection)
    connection._websocket = cast(Any, Burst())
    connection._halves = SurrogateHalves()
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(take_turns())
    for _ in range(MESSAGES):
        await connection._receive()
    others.cancel()
    assert turns >= MESSAGES
