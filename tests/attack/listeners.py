"""Good listeners beside an attack: a stream over HTTP, a live socket, and events. Their first audio is timed."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import httpx
from websockets.asyncio.client import connect

from tests.attack.target import OWN, SPEECH

TEXT = "The train leaves at noon."
PAUSE_S = 0.1
"""Between two utterances of a listener."""
GIVE_UP_S = 60.0
"""A listener that has heard nothing by then hears nothing."""
PROBE_S = 0.05


@dataclass
class Heard:
    """Seconds to first audio for each kind of listener, seconds of each answer of /health, and what went wrong."""

    first_audio_s: dict[str, list[float]] = field(default_factory=dict)
    health_s: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Listeners:
    """Listeners of one server. `hear` lets all of them listen for a while."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = dict(headers)

    async def hear(self, while_it_lasts: Awaitable[None], utterances: int) -> Heard:
        """Listens until the work has ended, and each listener has heard at least this many utterances."""
        heard = Heard()
        over = asyncio.Event()
        async with self._http() as http:
            kinds = {"HTTP stream": self._stream(http), "live socket": self._live(), "events": self._events(http)}
            tasks = [
                asyncio.create_task(_listen(name, kind, heard, over.is_set, utterances)) for name, kind in kinds.items()
            ]
            probe = asyncio.create_task(self._probe(heard))
            try:
                await while_it_lasts
            finally:
                over.set()
                await asyncio.gather(*tasks)
                probe.cancel()
                await asyncio.gather(probe, return_exceptions=True)
        return heard

    def _http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self._url, headers=self._headers, timeout=GIVE_UP_S, trust_env=False)

    async def _probe(self, heard: Heard) -> None:
        async with self._http() as http:
            while True:
                asked_s = time.monotonic()
                await http.get("/health")
                heard.health_s.append(time.monotonic() - asked_s)
                await asyncio.sleep(PROBE_S)

    def _stream(self, http: httpx.AsyncClient) -> Callable[[], Awaitable[float]]:
        async def utterance() -> float:
            body = {"input": TEXT, "voice": "heart", "response_format": "pcm"}
            return await _first(http.stream("POST", SPEECH, json=body), lambda response: response.aiter_raw())

        return utterance

    def _events(self, http: httpx.AsyncClient) -> Callable[[], Awaitable[float]]:
        async def audio(response: httpx.Response) -> AsyncIterator[bytes]:
            async for line in response.aiter_lines():
                if "speech.audio.error" in line:
                    raise ConnectionError(line[:200])
                if "speech.audio.delta" in line:
                    yield line.encode()

        async def utterance() -> float:
            body = {"input": TEXT, "voice": "heart", "response_format": "pcm", "stream_format": "sse"}
            return await _first(http.stream("POST", SPEECH, json=body), audio)

        return utterance

    def _live(self) -> Callable[[], Awaitable[float]]:
        async def utterance() -> float:
            url = self._url.replace("http", "ws") + OWN
            async with connect(url, proxy=None, max_size=None, additional_headers=self._headers) as socket:
                await socket.send(json.dumps({"type": "session.config", "voice": "heart"}))
                await socket.recv()
                asked_s = time.monotonic()
                first_s: float | None = None
                for word in TEXT.split():
                    await socket.send(json.dumps({"type": "input.text", "text": f"{word} "}))
                await socket.send(json.dumps({"type": "input.done"}))
                async for message in socket:
                    if isinstance(message, bytes):
                        first_s = first_s or time.monotonic() - asked_s
                    elif json.loads(message)["type"] in ("audio.done", "error"):
                        break
                if first_s is None:
                    raise ConnectionError(f"no audio: {message!r:.200}, {socket.close_code}")
                return first_s

        return utterance


async def _first(
    asked: AbstractAsyncContextManager[httpx.Response], audio: Callable[[httpx.Response], AsyncIterator[bytes]]
) -> float:
    """Seconds from the request to its first audio. Hears the rest, too."""
    asked_s = time.monotonic()
    first_s: float | None = None
    async with asked as response:
        if response.status_code != 200:
            raise ConnectionError(f"{response.status_code} {(await response.aread())[:200]!r}")
        async for _ in audio(response):
            first_s = first_s or time.monotonic() - asked_s
    if first_s is None:
        raise ConnectionError("no audio")
    return first_s


async def _listen(
    name: str, utterance: Callable[[], Awaitable[float]], heard: Heard, over: Callable[[], bool], least: int
) -> None:
    times = heard.first_audio_s.setdefault(name, [])
    lost = 0
    while not over() or len(times) + lost < least:
        try:
            async with asyncio.timeout(GIVE_UP_S):
                times.append(await utterance())
        except Exception as error:  # a good listener hears its speech, whatever the reason that it does not
            lost += 1
            heard.faults.append(f"{name}: {type(error).__name__} {error}")
        await asyncio.sleep(PAUSE_S)
