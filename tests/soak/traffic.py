"""Traffic of good and bad clients. Each kind is one function, which returns the ending of its request."""

import asyncio
import io
import json
import random
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import av
import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.attack.judge import faults_of_answers
from tests.attack.strike import INPUTS, Input
from tests.attack.target import Target
from tests.soak.endings import Ending, Outcome

SPEECH, BATCH, LIVE = "/v1/audio/speech", "/v1/audio/speech/batch", "/v1/audio/speech/stream"
SENTENCES = (
    "Hello there.",
    "The train leaves at noon.",
    "Nobody knows what the weather will be tomorrow.",
    "Please turn left after the second bridge, and then wait for me.",
    "It was a bright cold day in the mountains, and the clocks were all wrong.",
)
SPEAKERS = ("heart", "michael")
FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
MALFORMED: tuple[tuple[bytes, int], ...] = (
    (b"{", 400),
    (b"[" * 50_000, 400),
    (b'{"input": "Hello."}', 400),
    (b'{"input": "", "voice": "heart"}', 400),
    (b'{"input": "Hello.", "voice": "nobody"}', 400),
    (b'{"input": "Hello.", "voice": "heart", "sped": 1}', 400),
    (b'{"input": "Hello.", "voice": "heart", "model": "other"}', 404),
    (b'{"input": "' + b"a" * 5000 + b'", "voice": "heart"}', 400),
    (b" " * (17 * 2**20), 413),
)
BAD_BYTES = (
    b"\x00\x01\x02\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"G",
)
BAD_MESSAGES: tuple[str | bytes, ...] = (
    "",
    "[]",
    "[" * 50_000,
    b"\x00",
    '{"type": "input.text", "text": "a"}',
    "x" * 2**17,
)
SMALL_BUFFER_BYTES = 2**14
EXPIRED = "time to wait has passed"
HOSTILE: tuple[Input, ...] = tuple(one for one in INPUTS if "open" in one.settings)


@dataclass(frozen=True, slots=True)
class Client:
    """`random` is of one request alone, so that a run can be repeated."""

    http: httpx.AsyncClient
    random: random.Random

    def body(self, **fields: Any) -> dict[str, Any]:
        texts = self.random.choices(SENTENCES, k=self.random.choice((1, 1, 2)))
        return {"input": " ".join(texts), "voice": self.random.choice(SPEAKERS), **fields}

    def live(self) -> connect:
        base = self.http.base_url
        return connect(f"ws://{base.host}:{base.port}{LIVE}", proxy=None, max_size=2**24)


Kind = Callable[[Client], Awaitable[Ending]]


def refusal(kind: str, response: httpx.Response, asked_s: float) -> Ending:
    """An answer that is no audio: a 429 in OpenAI's shape that says when to come back, or lost."""
    error = response.json()["error"]
    if response.status_code == 429 and int(response.headers["retry-after"]) >= 1 and len(error) == 4:
        if EXPIRED in error["message"]:
            return Ending(kind, "expired")
        return Ending(kind, "refused", refused_s=time.monotonic() - asked_s)
    return Ending(kind, "LOST", f"{response.status_code} {response.text[:200]}")


def can_be_decoded(format_name: str, audio: bytes) -> bool:
    """Whether a file is whole enough for a player, and holds more than a blink."""
    if format_name == "pcm":
        return len(audio) >= 2 * 1920 * 2 and len(audio) % 2 == 0
    with av.open(io.BytesIO(audio)) as container:
        assert isinstance(container, av.container.InputContainer)
        samples = sum(frame.samples for frame in container.decode(audio=0))
    return bool(samples > 1920)


# ---- good clients


async def streamed(client: Client) -> Ending:
    name = client.random.choice(FORMATS)
    kind, asked_s = f"streamed {name}", time.monotonic()
    ttfa_s, audio = None, b""
    async with client.http.stream("POST", SPEECH, json=client.body(response_format=name)) as response:
        if response.status_code != 200:
            await response.aread()
            return refusal(kind, response, asked_s)
        async for piece in response.aiter_raw():
            ttfa_s = ttfa_s or time.monotonic() - asked_s
            audio += piece
    whole = await asyncio.to_thread(can_be_decoded, name, audio)
    return Ending(kind, "completed" if whole else "LOST", f"{len(audio)} bytes", ttfa_s)


async def whole(client: Client) -> Ending:
    name = client.random.choice(FORMATS)
    kind, asked_s = "whole", time.monotonic()
    response = await client.http.post(SPEECH, json=client.body(response_format=name, stream=False))
    if response.status_code != 200:
        return refusal(kind, response, asked_s)
    good = await asyncio.to_thread(can_be_decoded, name, response.content)
    return Ending(kind, "completed" if good else "LOST", name)


async def events(client: Client) -> Ending:
    kind, asked_s = "events", time.monotonic()
    ttfa_s, last = None, ""
    body = client.body(response_format="mp3", stream_format="sse")
    async with client.http.stream("POST", SPEECH, json=body) as response:
        if response.status_code != 200:
            await response.aread()
            return refusal(kind, response, asked_s)
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                ttfa_s = ttfa_s or time.monotonic() - asked_s
                last = line
    if '"type":"speech.audio.done"' in last:
        return Ending(kind, "completed", ttfa_s=ttfa_s)
    expired = '"speech.audio.error"' in last and EXPIRED in last
    return Ending(kind, "expired" if expired else "LOST", last[:200])


async def batch(client: Client) -> Ending:
    items = [{"input": client.random.choice(SENTENCES)} for _ in range(2)]
    asked_s = time.monotonic()
    response = await client.http.post(BATCH, json={"items": items, "voice": "heart", "response_format": "opus"})
    if response.status_code != 200:
        return refusal("batch", response, asked_s)
    codes = {result["status_code"] for result in response.json()["results"]}
    if codes == {200}:
        return Ending("batch", "completed")
    return Ending("batch", "refused" if codes <= {200, 429} else "LOST", str(codes))


async def live(client: Client, cancel: bool = False) -> Ending:
    """Text word by word; the server reads it, and maybe a cancel, while it speaks."""
    kind = "live, cancelled" if cancel else "live"
    async with client.live() as socket:
        await send(socket, "session.config", voice=client.random.choice(SPEAKERS))
        asked_s = time.monotonic()
        writing = asyncio.create_task(write(socket, client, cancel))
        try:
            return await listen(socket, kind, asked_s)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


async def live_cancelled(client: Client) -> Ending:
    return await live(client, cancel=True)


async def send(socket: ClientConnection, message: str, **fields: object) -> None:
    await socket.send(json.dumps({"type": message, **fields}))


async def write(socket: ClientConnection, client: Client, cancel: bool) -> None:
    for word in client.body()["input"].split():
        await send(socket, "input.text", text=f"{word} ")
        await asyncio.sleep(client.random.uniform(0, 0.2))
    if cancel:
        await asyncio.sleep(client.random.uniform(0, 1.5))
        await send(socket, "input.cancel")
    else:
        await send(socket, "input.done")
    await send(socket, "session.close")


async def listen(socket: ClientConnection, kind: str, asked_s: float) -> Ending:
    outcome: Outcome = "cancelled"  # before it had begun
    ttfa_s = None
    detail = ""
    audio_bytes = 0
    with suppress(ConnectionClosed):
        async for message in socket:
            if isinstance(message, bytes):
                ttfa_s = ttfa_s or time.monotonic() - asked_s
                audio_bytes += len(message)
                continue
            parsed = json.loads(message)
            match parsed["type"]:
                case "error":
                    code = parsed["error"]["code"]
                    outcome = "refused" if code == "queue_full" else "LOST"
                    detail = message[:200]
                    if outcome == "refused":
                        break
                case "audio.done":
                    if parsed["total_bytes"] != audio_bytes:
                        return Ending(kind, "LOST", f"{audio_bytes} bytes of {parsed['total_bytes']}")
                    outcome = "cancelled" if parsed["cancelled"] else "completed"
    if outcome == "cancelled" and kind == "live":
        return Ending(kind, "LOST", f"it ended without its speech, {socket.close_code} {socket.close_reason}")
    # How long a refusal took is not told: it comes when there is enough text to start with.
    return Ending(kind, outcome, detail, ttfa_s)


async def small_requests(client: Client) -> Ending:
    path = client.random.choice(("/health", "/ready", "/metrics", "/v1/models", "/v1/audio/voices", "/"))
    response = await client.http.get(path)
    return Ending("pages", "completed" if response.status_code == 200 else "LOST", f"{path} {response.status_code}")


# ---- bad clients


async def leaving(client: Client) -> Ending:
    """Goes away at any moment: while it waits, at its first frame, while it is heard."""
    fields = client.random.choice(({}, {"stream": False}, {"stream_format": "sse"}, {"response_format": "wav"}))
    after_s = client.random.uniform(0, 1.5)
    asked_s = time.monotonic()
    with suppress(TimeoutError):
        async with asyncio.timeout(after_s), client.http.stream("POST", SPEECH, json=client.body(**fields)) as response:
            if response.status_code != 200:
                await response.aread()
                return refusal("leaving", response, asked_s)
            async for _ in response.aiter_raw():
                pass
            return Ending("leaving", "completed")
    return Ending("leaving", "left")


async def leaving_live(client: Client) -> Ending:
    async with client.live() as socket:
        await send(socket, "session.config", voice="heart")
        writing = asyncio.create_task(write(socket, client, cancel=False))
        await asyncio.sleep(client.random.uniform(0, 1.5))
        writing.cancel()
        socket.transport.abort()
        await asyncio.gather(writing, return_exceptions=True)
    return Ending("leaving live", "left")


async def slow(client: Client) -> Ending:
    """Asks for four times as much audio as is spoken, reads a little, and then nothing more."""
    body = client.body(response_format="wav", sample_rate=48000, speed=0.25)
    content = json.dumps({**body, "input": " ".join(SENTENCES)}).encode()
    head = f"POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\n\r\n"
    bare = socket.socket()
    bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    bare.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(bare, (client.http.base_url.host, client.http.base_url.port))
        await loop.sock_sendall(bare, head.encode() + content)
        first = await loop.sock_recv(bare, 1000)
        if b" 429 " in first:
            return Ending("slow reader", "refused")
        if b" 200 " not in first:
            return Ending("slow reader", "LOST", first[:200].decode(errors="replace"))
        await asyncio.sleep(client.random.uniform(10, 20))
        received = await read_to_end(loop, bare)
    finally:
        bare.close()
    return Ending("slow reader", "completed" if received.endswith(b"\r\n0\r\n\r\n") else "dropped")


async def read_to_end(loop: asyncio.AbstractEventLoop, bare: socket.socket) -> bytes:
    received = b""
    with suppress(ConnectionError):
        while piece := await loop.sock_recv(bare, 2**16):
            received = received[-16:] + piece
    return received


async def malformed(client: Client) -> Ending:
    content, status = client.random.choice(MALFORMED)
    headers = {"Content-Type": "application/json"}
    try:
        response = await client.http.post(SPEECH, content=content, headers=headers)
    except (httpx.WriteError, httpx.ReadError) as error:  # it was refused before all of it had been sent
        return Ending("malformed", "rejected" if status == 413 else "LOST", repr(error))
    good = response.status_code == status and len(response.json()["error"]) == 4
    return Ending("malformed", "rejected" if good else "LOST", f"{content[:60]!r}: {response.status_code}")


async def bad_bytes(client: Client) -> Ending:
    """No HTTP at all; or the beginning of it, and nothing more."""
    sent = client.random.choice(BAD_BYTES)
    reader, writer = await asyncio.open_connection(client.http.base_url.host, client.http.base_url.port)
    writer.write(sent)
    if sent == b"G":
        await asyncio.sleep(client.random.uniform(0, 1))
        writer.transport.abort()
        return Ending("no HTTP", "left")
    answer = await reader.read()
    writer.close()
    return Ending("no HTTP", "rejected" if b" 400 " in answer or b" 505 " in answer else "LOST", repr(answer[:100]))


async def bad_messages(client: Client) -> Ending:
    message = client.random.choice(BAD_MESSAGES)
    async with client.live() as socket:
        with suppress(ConnectionClosed):
            await socket.send(message)
            async for _ in socket:
                pass
    told = socket.close_code in (1002, 1009)
    return Ending("bad messages", "rejected" if told else "LOST", f"{message[:20]!r}: {socket.close_code}")


async def hostile(client: Client) -> Ending:
    """One hostile input of the attack, once."""
    one = client.random.choice(HOSTILE)
    target = Target(str(client.http.base_url).rstrip("/"))
    await one.act(target)
    faults = faults_of_answers(target.answers)
    return Ending("hostile", "LOST" if faults else "rejected", f"{one.name}: {faults}")


KINDS: dict[Kind, float] = {
    streamed: 30,
    whole: 6,
    events: 8,
    batch: 3,
    live: 14,
    live_cancelled: 6,
    leaving: 12,
    leaving_live: 4,
    slow: 2,
    small_requests: 5,
    malformed: 6,
    bad_bytes: 2,
    bad_messages: 2,
    hostile: 4,
}
"""With the weight of each in the mixture."""
