"""Servers that speak at times set by a test. They run in the test's event loop and therefore in its virtual time."""

import asyncio
import base64
import json
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from vivavoce_bench.listener.exchange import Answer as Receiver
from vivavoce_bench.listener.live_text import LiveSpeaker
from vivavoce_bench.listener.load import Burst, Generator, GeneratorFacts, LoadPlan, Run, Share
from vivavoce_bench.listener.metrics import Measurement
from vivavoce_bench.listener.prompts import TextClass
from vivavoce_bench.listener.reception import Incomplete
from vivavoce_bench.listener.servers import Target
from vivavoce_bench.listener.summary import summarize
from vivavoce_bench.listener.transports import HttpSpeaker, Speaker
from vivavoce_client.live_transport import ConnectionLost

from tests.support.virtual_time import run_in_virtual_time

SAMPLE_RATE = 24000


def tone(seconds: float) -> bytes:
    """A tone that is loud from its first sample on, as PCM."""
    samples = (round(8000 * math.cos(2 * math.pi * 300 * n / SAMPLE_RATE)) for n in range(round(seconds * SAMPLE_RATE)))
    return array("h", samples).tobytes()


def silence(seconds: float) -> bytes:
    return bytes(2 * round(seconds * SAMPLE_RATE))


def near(value: float) -> Any:  # (the type of approx is not that of its value)
    return pytest.approx(value, abs=1e-6)


@dataclass(frozen=True)
class Answer:
    """Answer of a server to one request: pieces, each after a pause. `broken` breaks it off."""

    pieces: Sequence[tuple[float, bytes]]
    content_type: str = "audio/pcm"
    status: int = 200
    broken: bool = False


Script = Callable[[int, dict[str, Any]], Answer]
"""(number of the request, its body) → answer."""


class ScriptedHttp:
    """An HTTP server. Connecting takes `connect_s` before the body of a request is sent."""

    def __init__(self, script: Script, connect_s: float = 0.0) -> None:
        self._script = script
        self._connect_s = connect_s
        self.bodies: list[dict[str, Any]] = []
        self.times: list[float] = []

    async def send(self, body: bytes, answer: Receiver) -> None:
        await asyncio.sleep(self._connect_s)
        answer.sent()
        self.bodies.append(json.loads(body))
        self.times.append(asyncio.get_running_loop().time())
        script = self._script(len(self.bodies) - 1, self.bodies[-1])
        answer.head(script.status, script.content_type)
        for pause_s, piece in script.pieces:
            await asyncio.sleep(pause_s)
            answer.data(piece)
        if script.broken:
            raise Incomplete("the connection failed: it was closed")
        answer.end()


class ScriptedSocket:
    """A WebSocket server. It greets, and answers the end or a word of the text with messages after pauses."""

    def __init__(self, before: Sequence[str], answer: Sequence[tuple[float, str | bytes]], after: str) -> None:
        self.sent: list[tuple[float, dict[str, Any]]] = []
        self.closed = False
        self._after = after
        self._answer = answer
        self._inbox: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        for message in before:
            self._inbox.put_nowait(json.dumps({"type": message}))
        self._answering: asyncio.Task[None] | None = None

    async def send(self, message: str) -> None:
        self.sent.append((asyncio.get_running_loop().time(), json.loads(message)))
        if self._answering is None and self.sent[-1][1]["type"] == self._after:
            self._answering = asyncio.create_task(self._speak())

    async def _speak(self) -> None:
        for pause_s, message in self._answer:
            await asyncio.sleep(pause_s)
            self._inbox.put_nowait(message)
        self._inbox.put_nowait(None)

    async def receive(self) -> str | bytes:
        message = await self._inbox.get()
        if message is None:
            raise ConnectionLost("going away", again=False)
        return message

    async def close(self) -> None:
        self.closed = True


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(f"event: {each['type']}\r\ndata: {json.dumps(each)}\r\n\r\n".encode() for each in events)


def delta(pcm: bytes) -> dict[str, Any]:
    return {"type": "speech.audio.delta", "audio": base64.b64encode(pcm).decode()}


DONE = {"type": "speech.audio.done", "usage": {}}


def texts(*given: str) -> tuple[TextClass, ...]:
    """One class of texts."""
    return (TextClass("all", given),)


async def run_load(plan: LoadPlan, speaker: Speaker, share: Share | None = None) -> Run:
    """Runs the load of one generator in this process."""
    measurements: list[Measurement] = []
    generator = Generator(plan, share or Share(), speaker, measurements.append)
    await generator.run()
    measurements.sort(key=lambda each: (not each.warmup, each.index))
    summary = summarize(measurements, plan.window, bursts=isinstance(plan.load, Burst))
    return Run(plan, summary, measurements, [GeneratorFacts(0.0, generator.tick_late_ms)], 0.0)


def run_http(plan: LoadPlan, server: ScriptedHttp, target: Target | None = None, share: Share | None = None) -> Run:
    async def run() -> Run:
        async with HttpSpeaker(target or Target("vivavoce", "http://server"), server) as speaker:
            return await run_load(plan, speaker, share)

    return run_in_virtual_time(run())


def run_live(plan: LoadPlan, target: Target, connect: Callable[[], ScriptedSocket]) -> Run:
    async def run() -> Run:
        async def open_it(url: str, headers: dict[str, str]) -> ScriptedSocket:
            return connect()

        speaker: Speaker = LiveSpeaker(target, open_it)
        return await run_load(plan, speaker)

    return run_in_virtual_time(run())
