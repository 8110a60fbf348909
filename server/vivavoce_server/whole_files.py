"""Whole files of speech: small ones in memory, larger ones on the disk, and their way into a response."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Self, TypeVar

from starlette.types import Send

from vivavoce_server.errors import STORAGE_FULL, ApiError

MAX_HELD_BYTES = 8 * 2**20
"""Most bytes of whole files that one request holds in memory."""
BLOCK_BYTES = 3 * 2**16
"""Bytes of a file that are sent at once. Base64 takes three at a time."""
Result = TypeVar("Result")


class WholeFile:
    """A file that grows while its speech is made. Past `held_bytes`, all of it is on the disk, in no folder."""

    def __init__(self, held_bytes: int = MAX_HELD_BYTES) -> None:
        self._held_bytes = held_bytes
        self._file = SpooledTemporaryFile(held_bytes)  # noqa: SIM115, `__exit__` closes it
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    async def append(self, content: bytes) -> None:
        """Raises an ApiError, 507, if the disk does not take it."""
        self.size += len(content)
        await self._run(lambda: self._file.write(content))

    async def clear(self) -> None:
        """Forgets all that was appended."""
        self.size = 0
        self._file.seek(0)
        self._file.truncate()

    async def complete(self, head: bytes) -> None:
        """Replaces as many of the file's first bytes by `head`."""

        def replace() -> None:
            self._file.seek(0)
            self._file.write(head)

        await self._run(replace)

    async def blocks(self) -> AsyncIterator[bytes]:
        self._file.seek(0)
        while block := await self._run(lambda: self._file.read(BLOCK_BYTES)):
            yield block

    async def _run(self, step: Callable[[], Result]) -> Result:
        """Runs a step on the file, on a thread if that may wait for the disk."""
        try:
            return step() if self.size <= self._held_bytes else await asyncio.to_thread(step)
        except OSError as error:
            reason = error.strerror or "the disk does not take it"
            message = f"The speech could not be kept until its end: {reason}. Ask for a stream"
            raise ApiError(STORAGE_FULL, message, None, "store_failed", "server_error") from error


@dataclass(frozen=True, slots=True)
class InBase64:
    """A file as a response has it inside JSON."""

    file: WholeFile

    @property
    def size(self) -> int:
        return (self.file.size + 2) // 3 * 4

    async def blocks(self) -> AsyncIterator[bytes]:
        held = b""
        async for block in self.file.blocks():
            held += block
            whole = len(held) - len(held) % 3
            yield base64.b64encode(held[:whole])
            held = held[whole:]
        if held:
            yield base64.b64encode(held)


Part = bytes | WholeFile | InBase64


def size_of(parts: Sequence[Part]) -> int:
    """Bytes of the parts together."""
    return sum(len(part) if isinstance(part, bytes) else part.size for part in parts)


async def send_parts(parts: Sequence[Part], send: Send) -> None:
    """Sends the parts as the body of a response. The last message is marked as the last and is not empty."""
    last = b""
    async for block in _blocks_of(parts):
        if last:
            await send({"type": "http.response.body", "body": last, "more_body": True})
        last = block
    await send({"type": "http.response.body", "body": last})


async def _blocks_of(parts: Sequence[Part]) -> AsyncIterator[bytes]:
    for part in parts:
        if isinstance(part, bytes):
            yield part
        else:
            async for block in part.blocks():
                yield block
