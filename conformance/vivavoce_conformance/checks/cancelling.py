"""Clients that leave, and clients that do not read: nobody else may notice."""

import asyncio
from contextlib import suppress

from vivavoce_conformance.checks.streaming import LENGTHS_CHARS, SENTENCE
from vivavoce_conformance.rules import PRACTICE, Group
from vivavoce_conformance.target import Failed, Target, expect_speech, now

CANCELLING = Group("cancelling", "clients that leave or do not read")
LEAVERS = 8
READY_S = 2.0
FACTOR, LEAST_S = 5.0, 5.0
"""Speech after the departure of others may take this many times as long as before, and at least this long."""


async def timed_speech(target: Target) -> float:
    """Seconds of a plain request. Raises Failed."""
    begun_s = now()
    expect_speech(await target.request_speech(), "a plain request")
    return now() - begun_s


def long_text() -> str:
    return (SENTENCE * (LENGTHS_CHARS[-1] // len(SENTENCE) + 1))[: LENGTHS_CHARS[-1]]


async def hear_first_and_leave(target: Target) -> None:
    """Asks for long speech, and closes the connection with its first byte."""
    async with target.open_speech(input=long_text()) as response:
        async for piece in response.aiter_raw():
            if piece:
                return


async def expect_as_quick(target: Target, before_s: float, when: str) -> None:
    allowed_s = max(LEAST_S, FACTOR * before_s)
    try:
        async with asyncio.timeout(allowed_s):
            await timed_speech(target)
    except TimeoutError:
        raise Failed(f"{when}, a short text took more than {allowed_s:.1f} s; before, {before_s:.2f} s") from None


@CANCELLING.check("must", PRACTICE, "after eight clients have left, the next is served at once")
async def leaving(target: Target) -> None:
    before_s = await timed_speech(target)
    await asyncio.gather(*(hear_first_and_leave(target) for _ in range(LEAVERS)), return_exceptions=True)
    await expect_as_quick(target, before_s, f"after {LEAVERS} clients left their long texts")


@CANCELLING.check("must", PRACTICE, "clients that leave before their body is complete hold nothing up")
async def leaving_early(target: Target) -> None:
    before_s = await timed_speech(target)
    lines = ("Content-Type: application/json", "Content-Length: 1000", "Expect: 100-continue")
    head = target.head("/audio/speech", *lines)

    async def send_half() -> None:
        reader, writer = await target.connect()
        try:
            writer.write(head)
            with suppress(TimeoutError):  # a server need not say that it is ready for the body (RFC 9110, 10.1.1)
                async with asyncio.timeout(READY_S):
                    await reader.read(1)
            writer.write(b'{"input": "Half')
            await writer.drain()
        finally:
            writer.close()

    await asyncio.gather(*(send_half() for _ in range(LEAVERS)))
    await expect_as_quick(target, before_s, f"after {LEAVERS} clients left in the middle of their request")


@CANCELLING.check("should", PRACTICE, "a client that does not read holds nobody up")
async def not_reading(target: Target) -> None:
    before_s = await timed_speech(target)
    body = target.content(input=long_text(), response_format="wav")
    head = target.head("/audio/speech", "Content-Type: application/json", f"Content-Length: {len(body)}")
    reader, writer = await target.connect(limit_bytes=1024)
    try:
        writer.write(head + body)
        async with asyncio.timeout(target.timeout_s):
            await reader.read(1)
        await expect_as_quick(target, before_s, "beside a client that does not read")
    finally:
        writer.close()
