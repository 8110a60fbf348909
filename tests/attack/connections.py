"""Hostile connections: TCP and HTTP that a well-behaved client would not send."""

import asyncio
import socket
import struct
from contextlib import AsyncExitStack, suppress

from tests.attack.target import SPEECH, Target

HELD_S = 3.0
STORM = 150
LINGER_0 = struct.pack("ii", 1, 0)


async def slow_heads(target: Target) -> None:
    async with target.bare() as bare:
        await target.send(bare, f"POST {SPEECH} HTTP/1.1\r\n".encode())
        for number in range(int(HELD_S / 0.1)):
            await target.send(bare, f"X-{number}: {'a' * 100}\r\n".encode())
            await asyncio.sleep(0.1)


async def slow_bodies(target: Target) -> None:
    async with target.bare() as bare:
        await target.send(bare, target.head("POST", SPEECH, 10_000))
        for _ in range(int(HELD_S / 0.1)):
            await target.send(bare, b" ")
            await asyncio.sleep(0.1)


async def large_heads(target: Target) -> None:
    async with target.bare() as bare:
        await target.send(bare, b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(20_000)))
        await target.read_answer(bare)


async def small_chunks(target: Target) -> None:
    """A body in chunks of one byte each, many in a segment."""
    async with target.bare() as bare:
        head = target.head("POST", SPEECH, headers={"Transfer-Encoding": "chunked", "Content-Type": "application/json"})
        await target.send(bare, head)
        for _ in range(100):
            await target.send(bare, b"1\r\n \r\n" * 1000)
        await target.send(bare, b"0\r\n\r\n")
        await target.read_answer(bare)


async def two_lengths(target: Target) -> None:
    async with target.bare() as bare:
        await target.send(bare, target.head("POST", SPEECH, 5, {"Transfer-Encoding": "chunked"}) + b"0\r\n\r\n")
        await target.read_answer(bare)


async def pipelined_heads(target: Target) -> None:
    """A whole GET and the head of a POST in one segment, many times: each POST never gets its body."""
    async with AsyncExitStack() as stack:
        for _ in range(20):
            bare = await stack.enter_async_context(target.bare())
            await target.send(bare, target.head("GET", "/health") + target.head("POST", SPEECH, 100))
        await asyncio.sleep(HELD_S)


async def pipelined_requests(target: Target) -> None:
    async with target.bare() as bare:
        await target.send(bare, target.head("GET", "/v1/audio/voices") * 2000)
        await target.read_answer(bare)


async def half_closed(target: Target) -> None:
    body = b'{"input":"Hi.","voice":"heart","response_format":"pcm"}'
    async with target.bare() as bare:
        await target.send(bare, target.head("POST", SPEECH, len(body)) + body)
        with suppress(OSError):
            bare.shutdown(socket.SHUT_WR)
        await target.read_answer(bare)


async def no_http(target: Target) -> None:
    for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\0" * 2**16, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
        async with target.bare() as bare:
            await target.send(bare, data)
            await target.read_answer(bare, 1.0)


async def resets(target: Target) -> None:
    """Speech that is asked for and reset before it comes."""
    body = b'{"input":"Nobody hears this.","voice":"heart"}'
    for _ in range(10):
        async with target.bare() as bare:
            await target.send(bare, target.head("POST", SPEECH, len(body)) + body)
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)
    await asyncio.sleep(0.2)


async def never_reading(target: Target) -> None:
    body = b'{"input":"' + b"Nobody reads this sentence. " * 100 + b'","voice":"heart","response_format":"wav"}'
    async with target.bare(small_buffer=True) as bare:
        await target.send(bare, target.head("POST", SPEECH, len(body)) + body)
        await asyncio.sleep(HELD_S)


async def descriptor_storm(target: Target) -> None:
    """More connections than the server has descriptors for, held for a while."""
    async with AsyncExitStack() as stack:
        for _ in range(STORM):
            with suppress(OSError):
                await stack.enter_async_context(target.bare())
        await asyncio.sleep(HELD_S)
