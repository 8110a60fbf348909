"""The steps of a session, the same for each client. A session script names them and adds its client.

A script runs in its client's own environment, as `python -m tests.clients.real.FOLDER.NAME URL`, so this module needs
the standard library alone. It prints a JSON line a step (README.md beside it lists them). Its settings are a code block
of the documents, so that they are known to work.
"""

import ast
import asyncio
import inspect
import json
import os
import re
import sys
import time
import traceback
from abc import ABC, abstractmethod
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from types import CodeType
from typing import Any

DOCUMENTS = Path(__file__).parents[3] / "docs"
ADDRESS = "localhost:8000"
"""The server's address in the documents."""
SESSION_S = float(os.environ.get("CLIENT_SESSION_S", "150"))
BREAKS = 4
"""Number of silences in a session, with a turn behind each."""
ANSWER_S = 30.0
FIRST_TEXT = "Good morning to you all. The train to the sea leaves at noon."
ONE_SENTENCE = "Good morning to you all, because the train to the sea leaves at noon."
LONG_TEXT = "One sentence follows the other here. " * 40
LATER_TEXT = "Here is another turn. It comes after a pause."
SETTLE_S = 0.5
"""Time after an interruption in which no audio may come."""


class Sound:
    """The audio of a turn, as the client's user gets it."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.began = asyncio.Event()
        self.half_a_second = asyncio.Event()
        self._squares = 0.0
        self._samples = 0

    def add(self, pcm: bytes, rate_hz: int) -> None:
        """Takes samples of 16 bits of one channel."""
        samples = array("h", pcm)
        if not samples:
            return
        self.seconds += len(samples) / rate_hz
        self._samples += len(samples)
        self._squares += sum(sample * sample for sample in samples)
        self.began.set()
        if self.seconds >= 0.5:
            self.half_a_second.set()

    @property
    def level(self) -> float:
        """Root of the mean square, 0 to 1."""
        return float((self._squares / self._samples) ** 0.5 / 32768) if self._samples else 0.0


class Client(ABC):
    """A client under test: speaks a turn to its end, and can be interrupted meanwhile."""

    interrupted_after_text = False
    """True if the text of the interrupted turn has ended, as when a language model is faster than speech."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    @abstractmethod
    async def say(self, words: "Words", sound: Sound) -> None:
        """Sends the words as they come, and returns at the end of the turn. An interruption cancels it first."""

    @abstractmethod
    async def interrupt(self) -> None:
        """Interrupts the turn whose `say` was cancelled, as an agent does whose user speaks."""


class Words:
    """The words of a text, one after the other. The last one waits until there is audio.

    A client that wants the whole text before it speaks takes it with `whole`.
    """

    def __init__(self, text: str, sound: Sound, endless: bool = False) -> None:
        """With `endless`, the last word never comes."""
        self.began_early: bool | None = None
        """True if audio came before the last word was sent; None for a client that sends the whole text at once."""
        self._text = text
        self._sound = sound
        self._endless = endless

    async def __aiter__(self) -> AsyncIterator[str]:
        words = re.findall(r"\S+\s*", self._text)
        for number, word in enumerate(words):
            if number == len(words) - 1:
                self.began_early = await happened(self._sound.began)
                if self._endless:
                    await asyncio.Future()
            yield word

    def whole(self) -> str:
        return self._text


async def happened(event: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(event.wait(), ANSWER_S)
    except TimeoutError:
        return False
    return True


def settings(name: str, url: str, **given: Any) -> dict[str, Any]:
    """Runs the code block ```python NAME of the documents against this server, and returns its names."""
    return _ran(block(name, url), given)


async def awaited_settings(name: str, url: str, **given: Any) -> dict[str, Any]:
    """The same for a block with `await` in it."""
    code = compile(block(name, url), name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names = dict(given)
    pending = eval(code, names)
    if inspect.isawaitable(pending):
        await pending
    return names


def _ran(code: str | CodeType, given: dict[str, Any]) -> dict[str, Any]:
    names = dict(given)
    exec(code, names)  # noqa: S102
    return names


def block(name: str, url: str) -> str:
    """The code block ```LANGUAGE NAME of the documents, with this server's address in it."""
    pages = "".join(page.read_text(encoding="utf-8") for page in sorted(DOCUMENTS.glob("*.md")))
    (code,) = re.findall(rf"^```\w+ {re.escape(name)}\n(.*?)^```", pages, re.DOTALL | re.MULTILINE)
    return str(code).replace(ADDRESS, url.split("//")[1])


def report(step: str, **seen: Any) -> None:
    print(json.dumps({"step": step, **seen}), flush=True)


async def go_ahead() -> None:
    """Waits for the line by which the test lets the script go on."""
    assert await asyncio.to_thread(sys.stdin.readline), "the test has ended"


async def follow(client: Client, first_text: str = FIRST_TEXT) -> None:
    """Takes the client through a session: a turn, an interruption, the turn after it, and turns after silences.

    `first_text` is that of the first turn. A client that sends words without waiting for the end of a sentence gets
    ONE_SENTENCE, so that it hears speech early only if the server speaks words as they come. A fault ends the process
    at once, as a client's own tasks may keep it alive.
    """
    try:
        await _follow(client, first_text)
    except BaseException:
        traceback.print_exc()
        print(f"errors of the client: {client.errors}", file=sys.stderr, flush=True)
        os._exit(1)


async def _follow(client: Client, first_text: str) -> None:
    report("ready")
    await go_ahead()
    begun_s = time.monotonic()
    await _turn(client, first_text)
    await _interruption(client)
    await _turn(client, LATER_TEXT)
    for number in range(1, BREAKS + 1 if SESSION_S else 1):
        await asyncio.sleep(max(0.0, begun_s + SESSION_S * number / BREAKS - time.monotonic()))
        await _turn(client, LATER_TEXT)
    report("end", lasted_s=time.monotonic() - begun_s, errors=client.errors)


async def _turn(client: Client, text: str) -> None:
    sound = Sound()
    words = Words(text, sound)
    await asyncio.wait_for(client.say(words, sound), 2 * ANSWER_S)
    report("turn", text=text, seconds=sound.seconds, level=sound.level, began_early=words.began_early)


async def _interruption(client: Client) -> None:
    sound = Sound()
    words = Words(LONG_TEXT, sound, endless=not client.interrupted_after_text)
    speaking = asyncio.create_task(client.say(words, sound))
    enough = asyncio.create_task(happened(sound.half_a_second))
    await asyncio.wait([enough, speaking], return_when=asyncio.FIRST_COMPLETED)
    assert not speaking.done(), f"nothing to interrupt: {speaking.exception()!r}"
    assert await enough, f"nothing to interrupt: {sound.seconds} s of audio came"
    before_s = sound.seconds
    speaking.cancel()
    await asyncio.wait([speaking])
    await client.interrupt()
    at_once_s = sound.seconds
    report("interrupted", before_s=before_s)
    await go_ahead()
    await asyncio.sleep(SETTLE_S)
    report("silent", text=LONG_TEXT, late_s=sound.seconds - at_once_s)
