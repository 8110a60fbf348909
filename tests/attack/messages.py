"""Hostile messages on live sockets."""

import asyncio
import json
from contextlib import AsyncExitStack

from websockets.asyncio.client import ClientConnection

from tests.attack.bodies import endless_mp4
from tests.attack.target import MULTI_STREAM_INPUT, OWN, REALTIME, STREAM_INPUT, Target, drain, encoded
from tests.support.recordings import voice_like, wav

HELD_S = 3.0
FLOOD = 1500
EMPTY_FLOOD = 11_000
"""More messages without text than a client may send at once."""
SILENT = 100


async def send(connection: ClientConnection, **fields: object) -> None:
    await connection.send(json.dumps(fields, ensure_ascii=False))


async def _flooded(
    target: Target, path: str, first: list[dict[str, object]], message: dict[str, object], times: int = FLOOD
) -> None:
    """Sends the first messages, then the same one many times; reads nothing before."""
    async with target.live(path) as connection:
        for fields in first:
            await send(connection, **fields)
        for _ in range(times):
            await send(connection, **message)


CONFIG: dict[str, object] = {"type": "session.config", "voice": "heart"}
MARKS: dict[str, object] = {"type": "input.text", "text": "e" + "\u0301" * 40_000}


async def empty_messages(target: Target) -> None:
    await _flooded(target, OWN, [CONFIG, MARKS], {"type": "input.text", "text": ""}, EMPTY_FLOOD)


async def empty_messages_of_elevenlabs(target: Target) -> None:
    await _flooded(target, STREAM_INPUT, [{"text": "e" + "\u0301" * 40_000}], {"text": " "}, EMPTY_FLOOD)


async def empty_messages_of_contexts(target: Target) -> None:
    await _flooded(
        target, MULTI_STREAM_INPUT, [{"text": "Hi", "context_id": "a"}], {"text": "", "context_id": "a"}, EMPTY_FLOOD
    )


async def many_contexts(target: Target) -> None:
    async with target.live(MULTI_STREAM_INPUT) as connection:
        for number in range(FLOOD):
            await send(connection, text="Hi. ", context_id=f"{number}")
            await send(connection, context_id=f"{number}", close_context=True)


async def quotes_without_end(target: Target) -> None:
    async with target.live() as connection:
        await send(connection, **CONFIG, split="sentence")
        for _ in range(3):
            await send(connection, type="input.text", text="\u201c" * 43_000)
        await drain(connection, HELD_S)


async def letters_without_end(target: Target) -> None:
    async with target.live() as connection:
        await send(connection, **CONFIG, split="sentence")
        for _ in range(FLOOD):
            await send(connection, type="input.text", text="a" * 1000)
        await drain(connection, HELD_S)


async def large_messages(target: Target) -> None:
    async with target.live() as connection:
        await send(connection, **CONFIG)
        await send(connection, **CONFIG, speaker_embedding=[{}] * 1_000_000)
        await send(connection, **CONFIG, normalize=["a"] * 500_000)
        await drain(connection, HELD_S)


async def deep_messages(target: Target) -> None:
    for path in (OWN, STREAM_INPUT, REALTIME):
        async with target.live(path) as connection:
            await connection.send("[" * 100_000)
            await drain(connection, 1.0)


async def many_configurations(target: Target) -> None:
    await _flooded(target, OWN, [], CONFIG)


async def clones_on_a_socket(target: Target) -> None:
    async with target.live() as connection:
        for number in range(5):
            await send(connection, type="session.config", ref_audio=encoded(wav(voice_like(number, 3.0, 16000), 16000)))
        await send(connection, type="session.config", ref_audio=encoded(endless_mp4()))
        await drain(connection, HELD_S)


async def silent_sockets(target: Target) -> None:
    """Sockets that say nothing, not even a key."""
    async with AsyncExitStack() as stack:
        for _ in range(SILENT):
            await stack.enter_async_context(target.live(with_key=False))
        await asyncio.sleep(HELD_S)


async def many_items(target: Target) -> None:
    part = {"type": "input_text", "text": "a" * 2000}
    item = {"type": "message", "role": "user", "content": [part] * 50}
    await _flooded(target, REALTIME, [], {"type": "conversation.item.create", "item": item})


async def many_responses(target: Target) -> None:
    part = {"type": "input_text", "text": "Nobody waits for this."}
    response = {"conversation": "none", "input": [{"type": "message", "role": "user", "content": [part]}]}
    async with target.live(REALTIME) as connection:
        for _ in range(200):
            await send(connection, type="response.create", response=response)
            await send(connection, type="response.cancel")
        await drain(connection, 1.0)


async def never_reading_live(target: Target) -> None:
    async with target.live() as connection:
        await send(connection, **CONFIG)
        for _ in range(20):
            await send(connection, type="input.text", text="Nobody reads this sentence. " * 20)
        await send(connection, type="input.done")
        connection.transport.pause_reading()
        await asyncio.sleep(HELD_S)
        connection.transport.abort()


async def pages_of_other_sites(target: Target) -> None:
    async with target.live(with_key=False, headers={"Origin": "http://evil.example"}) as connection:
        await send(connection, **CONFIG)
        await drain(connection, 1.0)
