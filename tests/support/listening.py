"""Listeners: HTTP requests for speech, read to the end or until they break off."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from tests.support.live_socket import dial

SPEECH = "/v1/audio/speech"
SHORT = {"input": "Yes.", "voice": "heart", "response_format": "pcm", "seed": 3, "max_new_tokens": 20}
LONG = {
    "input": "The morning train was late again, and the people on the platform had begun to talk to each other about "
    "the weather, about the price of bread, and about the places where they would rather have been on such a day.",
    "voice": "heart",
    "response_format": "pcm",
    "seed": 11,
    "max_new_tokens": 100,
}
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Heard:
    status: int
    pcm: bytes
    complete: bool
    """True if the transfer ended as HTTP requires."""

    @property
    def samples(self) -> NDArray[np.int16]:
        return np.frombuffer(self.pcm[: len(self.pcm) // 2 * 2], "<i2")


def listen(url: str, body: dict[str, Any], first_byte: Event | None = None) -> Heard:
    """Requests speech and reads it. Sets `first_byte` once the first bytes arrive."""
    pcm = b""
    with httpx.stream("POST", url + SPEECH, json=body, timeout=TIMEOUT_S) as response:
        try:
            for piece in response.iter_raw():
                pcm += piece
                if first_byte is not None:
                    first_byte.set()
        except httpx.RemoteProtocolError:
            return Heard(response.status_code, pcm, False)
    return Heard(response.status_code, pcm, True)


async def listen_while_writing(url: str) -> None:
    """Speaks live text. Sends the rest once the beginning has been heard, and checks that all of it is spoken."""
    async with dial(url) as socket:
        await socket.configure(max_new_tokens=40)
        await socket.say("Good morning, ", "this is the news ")
        await socket.expect("audio.start")
        heard = await socket.audio()
        await socket.say("at eight.")
        await socket.send("input.done")
        rest, done = await socket.rest()
    assert done["total_bytes"] == len(heard) + len(rest) > len(heard)
    assert not done["cancelled"]


@contextmanager
def listeners(url: str, count: int, body: dict[str, Any]) -> Iterator[list[Future[Heard]]]:
    """Starts `count` listeners, each after the one before has heard something."""
    with ThreadPoolExecutor(count) as pool:
        heard = []
        for _ in range(count):
            first_byte = Event()
            heard.append(pool.submit(listen, url, body, first_byte))
            assert first_byte.wait(TIMEOUT_S), "nothing was heard"
        yield heard


@contextmanager
def load(url: str, workers: int) -> Iterator[list[Heard]]:
    """Sends short requests, one after the other in each worker, until the block ends. Yields what they heard."""
    over = Event()
    heard: list[Heard] = []

    def work() -> None:
        while not over.is_set():
            heard.append(listen(url, SHORT))

    with ThreadPoolExecutor(workers) as pool:
        working = [pool.submit(work) for _ in range(workers)]
        try:
            yield heard
        finally:
            over.set()
    for worker in working:
        worker.result()
