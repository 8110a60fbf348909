"""`python -m tests.soak.chats --minutes 10`: conversations that are answered whole, or cancelled at every phase.

The server runs a small random Qwen3-Omni checkpoint, thinker and talker in processes of their own. An answer is given
up before its first byte, at its first chunk, at its first audio, in its middle, or never. One with a seed must be the
same each time. Afterwards the server must hold what it held after a warm-up, and answer at once. Prints a report, and
exits with 1 if anything was lost. Loopback only.
"""

import argparse
import asyncio
import base64
import contextlib
import hashlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.soak.__main__ import at_rest, compare
from tests.soak.server import soaked_server
from tests.soak.sockets import is_fault
from tests.support.chatting import PATH, Json, png
from tests.support.omni_checkpoints import omni_checkpoint
from tests.support.recordings import voice_like, wav

TALKERS = 8
MAX_WAIT_S = 60.0
ANSWER_S = 240.0
"""Most seconds of an answer that is not given up, on a busy machine."""
SETTINGS = ("--max-streams", "8", "--runner", "torch", "--dtype", "float32", "--device", "cpu", "--stall-s", "5")
PHASES = ("unanswered", "first chunk", "first audio", "middle", "whole", "whole")
BUSY = frozenset({429, 503})
CUT = "ASGI callable returned without completing response"
"""uvicorn's word for a transfer that is broken off on purpose, such as one that is refused after a heartbeat."""


def request_of(draw: random.Random, sound: str, picture: str) -> Json:
    """A request of any kind. Its seed is one of four, so that answers come again."""
    seed = draw.randrange(4)
    kind = draw.choice(("text", "sound", "picture"))
    parts: dict[str, list[Json]] = {
        "text": [],
        "sound": [{"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}],
        "picture": [{"type": "image_url", "image_url": {"url": picture}}],
    }
    content = [*parts[kind], {"type": "text", "text": "What is the capital of china?"}]
    body: Json = {
        "messages": [{"role": "system", "content": "reply"}, {"role": "user", "content": content}],
        "max_tokens": draw.choice((4, 12)),
        "temperature": 1.0,
        "seed": seed,
        "stream": True,
    }
    if draw.random() < 0.8:
        body |= {"modalities": ["text", "audio"], "audio": {"voice": "ethan", "format": "pcm16"}}
    return body


class Soak:
    """All conversations of a run, and what was lost."""

    def __init__(self, http: httpx.AsyncClient, seed: int) -> None:
        self._http = http
        self._seed = seed
        self._answers: dict[str, str] = {}
        """Request → digest of its answer."""
        self._sound = base64.b64encode(wav(voice_like(0, 1.0))).decode()
        self._picture = png(np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8))
        self.endings: Counter[str] = Counter()
        self.faults: list[str] = []

    async def run(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        await asyncio.gather(*(self._talk(number, until_s) for number in range(TALKERS)))

    async def _talk(self, number: int, until_s: float) -> None:
        draw = random.Random(f"{self._seed}.{number}")
        while time.monotonic() < until_s:
            body, phase = request_of(draw, self._sound, self._picture), draw.choice(PHASES)
            try:
                async with asyncio.timeout(ANSWER_S):
                    self.endings[await self._ask(body, phase, draw)] += 1
            except (httpx.HTTPError, TimeoutError, AssertionError) as error:
                self.faults.append(f"talker {number}, {phase}: {error!r}")

    async def _ask(self, body: Json, phase: str, draw: random.Random) -> str:
        """Asks, and gives up at a phase. Returns what came of it."""
        if phase == "unanswered":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(draw.uniform(0, 0.3)):
                    await self._http.post(PATH, json=body)
                    return "answered at once"
            return phase
        async with self._http.stream("POST", PATH, json=body) as response:
            if response.status_code in BUSY:
                await asyncio.sleep(1.0)
                return "refused"
            assert response.status_code == 200, await response.aread()
            digest, pieces, done = hashlib.sha256(), 0, False
            async for line in response.aiter_lines():
                if phase == "first chunk" and line:
                    return phase
                done = done or line == "data: [DONE]"
                if "queue_full" in line:
                    return "refused"  # after a heartbeat, which has the status already
                told = _told(line)
                pieces += "data" in told
                if (phase == "first audio" and pieces) or (phase == "middle" and pieces > draw.randrange(2, 6)):
                    return phase
                digest.update(told.get("data", "").encode() + told.get("text", "").encode())
        assert done, "a transfer ended without [DONE]"
        key = json.dumps(body, sort_keys=True)
        assert self._answers.setdefault(key, digest.hexdigest()) == digest.hexdigest(), "a seed gave another answer"
        return "whole"


def _told(line: str) -> dict[str, str]:
    """Audio and text of an event."""
    if not line.startswith("data: {"):
        return {}
    event: dict[str, Any] = json.loads(line[6:])
    assert "error" not in event, event
    delta = event["choices"][0]["delta"] if event["choices"] else {}
    audio = delta.get("audio") or {}
    text = (delta.get("content") or "") + audio.get("transcript", "") + audio.get("unspoken", "")
    return {"text": text, **({"data": audio["data"]} if "data" in audio else {})}


async def soak(options: argparse.Namespace, url: str, process_id: int) -> list[str]:
    faults: list[str] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=ANSWER_S, limits=limits) as http:
        warm = Soak(http, options.seed + 1)
        await warm.run(min(30.0, options.minutes * 30))
        before = await at_rest(http, process_id, faults)
        held = Soak(http, options.seed)
        await held.run(options.minutes * 60)
        after = await at_rest(http, process_id, faults)
        compare("conversations", before, after, faults)
        body = {"messages": [{"role": "user", "content": "who?"}], "max_tokens": 4}
        if (await http.post(PATH, json=body)).status_code != 200:
            faults.append("the thinker does not answer at rest")
    print(f"{options.minutes:g} minutes, {TALKERS} talkers: {dict(held.endings)}")
    print(f"the server held {before}; now {after}", flush=True)
    if not held.endings["whole"]:
        faults.append("no answer was whole")
    return faults + warm.faults + held.faults


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.chats", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        checkpoint = omni_checkpoint(folder / "checkpoint")
        process, url = stack.enter_context(soaked_server(folder, MAX_WAIT_S, f"omni={checkpoint}", SETTINGS))
        faults = asyncio.run(soak(options, url, process.pid))
        process.terminate()
        if (status := process.wait(60)) != 0:
            faults.append(f"the server ended with {status}")
        log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    lines = [line for line in log.splitlines() if is_fault(line) and CUT not in line]
    faults += [f"the server's log: {line}" for line in lines]
    for fault in faults[:50]:
        print("LOST", fault)
    print(f"lost: {len(faults)}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
