"""`python -m tests.soak.sockets --minutes 30`: live sockets that stay open, against a server with a fake engine.

Each socket speaks now and then, waits in the middle of an utterance, idles, or is silent from the first. None may be
cut off, every utterance must be complete, and afterwards the server must hold what it held after a warm-up. At last
SIGTERM must be told to all at once. Prints a report, and exits with 1 if anything was lost. Loopback only.
"""

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.soak.__main__ import at_rest, compare
from tests.soak.server import soaked_server

SOCKETS = 50
SENTENCE = "The train leaves at noon. "
ROUND_S = 20.0
"""Most seconds between two turns of a socket."""
ANSWER_S = 60.0
MAX_WAIT_S = 30.0
SETTINGS = ("--max-streams", "64", "--live-stall-s", "5")
TOLD_S = 10.0
"""Seconds in which all sockets must have heard of SIGTERM."""
TRY_AGAIN_LATER = 1013


class Lost(Exception):
    """A socket did not do what it should."""


class Own:
    """The server's own protocol."""

    path = "/v1/audio/speech/stream"

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def begin(self) -> None:
        await self._send(type="session.config", voice="heart")
        await self._until("session.created")

    async def turn(self, pause_s: float) -> None:
        """One utterance, with a pause in the middle of its text."""
        await self._send(type="input.text", text=SENTENCE)
        await asyncio.sleep(pause_s)
        await self._send(type="input.text", text=SENTENCE)
        await self._send(type="input.done")
        done = await self._until("audio.done")
        if done["cancelled"] or not done["total_bytes"]:
            raise Lost(f"an utterance ended with {done}")

    async def _send(self, **fields: str) -> None:
        await self._connection.send(json.dumps(fields))

    async def _until(self, kind: str) -> dict[str, object]:
        async with asyncio.timeout(ANSWER_S):
            async for message in self._connection:
                parsed = {} if isinstance(message, bytes) else json.loads(message)
                if parsed.get("type") == "error":
                    raise Lost(str(parsed))
                if parsed.get("type") == kind:
                    return dict(parsed)
        raise Lost(f"closed with {self._connection.close_code} before {kind}")


class ElevenLabs:
    """ElevenLabs' protocol."""

    path = "/v1/text-to-speech/heart/stream-input?output_format=pcm_24000"

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def begin(self) -> None:
        await self._connection.send(json.dumps({"text": " "}))

    async def turn(self, pause_s: float) -> None:
        await self._connection.send(json.dumps({"text": SENTENCE}))
        await asyncio.sleep(pause_s)
        await self._connection.send(json.dumps({"text": SENTENCE, "flush": True}))
        async with asyncio.timeout(ANSWER_S):
            message = json.loads(await self._connection.recv())
            if not message.get("audio"):
                raise Lost(str(message))
            with contextlib.suppress(TimeoutError):  # the protocol does not say when an utterance has ended
                while True:
                    await asyncio.wait_for(self._connection.recv(), 1.0)


class Soak:
    """All sockets of a run, and what they lost."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url.replace("http", "ws")
        self._seed = seed
        self._open: set[ClientConnection] = set()
        self.faults: list[str] = []
        self.turns: Counter[int] = Counter()

    async def hold(self, number: int, until_s: float) -> None:
        """One socket from dial to the end. Of five, one says nothing at all, and one nothing after its first turn."""
        protocol = (Own, ElevenLabs)[number % 2]
        draw = random.Random(f"{self._seed}.{number}")
        connection = await connect(self._url + protocol.path, proxy=None, max_size=None, max_queue=None)
        self._open.add(connection)
        speaker = protocol(connection)
        most_turns = {0: 0, 1: 1}.get(number % 5, sys.maxsize)
        try:
            await asyncio.sleep(draw.uniform(0, ROUND_S))
            if most_turns:
                await speaker.begin()
            while time.monotonic() < until_s and self.turns[number] < most_turns:
                await speaker.turn(draw.uniform(0, 5))
                self.turns[number] += 1
                await asyncio.sleep(draw.uniform(0, ROUND_S))
            await asyncio.sleep(max(0.0, until_s - time.monotonic()))
            if connection.close_code is not None:
                raise Lost(f"closed with {connection.close_code}")
        except (Lost, ConnectionClosed, TimeoutError) as error:
            self.faults.append(f"socket {number} ({protocol.__name__}): {error!r}")

    async def leave(self) -> None:
        for connection in self._open:
            await connection.close()
        self._open.clear()

    async def hear_the_end(self) -> None:
        """Waits until the server has closed every socket."""
        try:
            async with asyncio.timeout(TOLD_S):
                await asyncio.gather(*(connection.wait_closed() for connection in self._open))
        except TimeoutError:
            self.faults.append("SIGTERM was not told to all sockets")
        codes = Counter(connection.close_code for connection in self._open)
        print(f"close codes after SIGTERM: {dict(codes)}")
        if set(codes) != {TRY_AGAIN_LATER}:
            self.faults.append(f"SIGTERM closed sockets with {dict(codes)}")


def is_fault(line: str) -> bool:
    """True if a line of the server's log tells of a fault. A busy machine makes the event loop late, which is none."""
    levels = ("Traceback", " WARNING ", " ERROR ", " CRITICAL ")
    return any(level in line for level in levels) and " vivavoce_server.loop_watch " not in line


async def soak(options: argparse.Namespace, url: str, process_id: int, stop: Callable[[], None]) -> list[str]:
    faults: list[str] = []
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        warm = Soak(url, options.seed + 1)
        await run(warm, options.sockets, ROUND_S)
        await warm.leave()
        before = await at_rest(http, process_id, faults)
        held = Soak(url, options.seed)
        await run(held, options.sockets, options.minutes * 60)
        await held.leave()
        after = await at_rest(http, process_id, faults)
        compare("open sockets", before, after, faults)
        print(f"{options.sockets} sockets, {options.minutes:g} minutes, {held.turns.total()} utterances")
        print(f"the server held {before}; now {after}", flush=True)
        last = Soak(url, options.seed + 2)
        await run(last, options.sockets, 1.0)
        stop()
        await last.hear_the_end()
    return faults + warm.faults + held.faults + last.faults


async def run(sockets: Soak, number: int, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    await asyncio.gather(*(sockets.hold(index, until_s) for index in range(number)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.sockets", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="for which the sockets stay open")
    parser.add_argument("--sockets", type=int, default=SOCKETS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        process, url = stack.enter_context(soaked_server(folder, MAX_WAIT_S, "fake", SETTINGS))
        stop = partial(process.send_signal, signal.SIGTERM)
        faults = asyncio.run(soak(options, url, process.pid, stop))
        if (status := process.wait(60)) != 0:
            faults.append(f"the server ended with {status}")
        log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    faults += [f"the server's log: {line}" for line in log.splitlines() if is_fault(line)]
    for fault in faults[:50]:
        print("LOST", fault)
    print(f"lost: {len(faults)}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
