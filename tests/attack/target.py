"""The server under attack, as an attacker sees it, and a tally of its answers."""

import asyncio
import base64
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

SPEECH, BATCH, VOICES = "/v1/audio/speech", "/v1/audio/speech/batch", "/v1/audio/voices"
OWN = "/v1/audio/speech/stream"
STREAM_INPUT = "/v1/text-to-speech/heart/stream-input"
MULTI_STREAM_INPUT = "/v1/text-to-speech/heart/multi-stream-input"
REALTIME = "/v1/realtime"
SMALL_BUFFER_BYTES = 2**13
NO_ANSWER = "no answer"
ANSWER_S = 60.0


class Refused(Exception):
    """The server let no live socket open. Its answer has been counted."""


@dataclass
class Target:
    """A server and its key, None on a server without keys. `answers` counts statuses, close codes and silence."""

    url: str
    key: str | None = None
    answers: Counter[str] = field(default_factory=Counter)

    @property
    def address(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        return url.host, url.port or 80

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    async def ask(
        self, path: str, body: bytes, with_key: bool = True, headers: Mapping[str, str] | None = None
    ) -> None:
        """Sends a POST of JSON, or of what the headers say. Reads and drops the answer."""
        own = {"Content-Type": "application/json", **(headers or {}), **(self.authorization if with_key else {})}
        try:
            async with (
                httpx.AsyncClient(base_url=self.url, timeout=ANSWER_S, trust_env=False) as http,
                http.stream("POST", path, content=body, headers=own) as response,
            ):
                async for _ in response.aiter_raw():
                    pass
                self.answers[str(response.status_code)] += 1
        except httpx.TransportError:  # refused before everything had been sent
            self.answers[NO_ANSWER] += 1

    async def ask_json(self, path: str, with_key: bool = True, **fields: Any) -> None:
        await self.ask(path, json.dumps(fields).encode(), with_key)

    @asynccontextmanager
    async def bare(self, small_buffer: bool = False) -> AsyncIterator[socket.socket]:
        """A connected socket that nothing reads unless it is asked to."""
        with socket.socket() as bare:
            if small_buffer:
                bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
            bare.setblocking(False)
            await asyncio.get_running_loop().sock_connect(bare, self.address)
            yield bare

    async def send(self, bare: socket.socket, data: bytes) -> None:
        with suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(bare, data)

    async def read_answer(self, bare: socket.socket, wait_s: float = 5.0) -> None:
        """Counts the status of the first answer."""
        answer = b""
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(wait_s):
                answer = await asyncio.get_running_loop().sock_recv(bare, 2**16)
        self.answers[answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.") else NO_ANSWER] += 1

    def head(
        self, method: str, path: str, length: int | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        host = ":".join(map(str, self.address))
        own = {"Host": host, **self.authorization, **(headers or {})}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in own.items())]
        if length is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {length}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    @asynccontextmanager
    async def live(
        self, path: str = OWN, with_key: bool = True, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[ClientConnection]:
        """An open live socket; its close code is counted, whoever closes it.

        Raises:
            Refused: the handshake was refused, or got no answer.
        """
        own = {**(headers or {}), **(self.authorization if with_key else {})}
        try:
            async with connect(
                self.url.replace("http", "ws") + path,
                proxy=None,
                max_size=None,
                open_timeout=60,
                close_timeout=10,
                ping_interval=None,
                additional_headers=own,
            ) as connection:
                try:
                    with suppress(ConnectionClosed):
                        yield connection
                finally:
                    await connection.close()
                    self.answers[f"ws {connection.close_code}"] += 1
        except InvalidHandshake as refusal:
            response = getattr(refusal, "response", None)
            self.answers[NO_ANSWER if response is None else str(response.status_code)] += 1
            raise Refused from refusal
        except (OSError, EOFError) as error:
            self.answers[NO_ANSWER] += 1
            raise Refused from error


async def drain(connection: ClientConnection, seconds: float = 30.0) -> None:
    """Reads and drops messages until the connection closes."""
    with suppress(ConnectionClosed, TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                await connection.recv()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
