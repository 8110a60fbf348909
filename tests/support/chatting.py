"""Servers that chat, over the fake engine and a thinker that a test controls."""

import asyncio
import base64
import io
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from vivavoce_engine import (
    ChatMessage,
    Engine,
    EngineConfig,
    EngineError,
    Thinker,
    ThinkerEnd,
    ThinkerToken,
    ThinkOptions,
    Thought,
)
from vivavoce_engine.fake_runner import FAKE_CHAT_INFO, FakeRunner
from vivavoce_engine.thinker.fake import FakeThinker
from vivavoce_server import ServerConfig

from tests.support.live_server import LiveServer, live_server

PATH = "/v1/chat/completions"
Json = dict[str, Any]
HELLO: Json = {"messages": [{"role": "user", "content": "Hello."}]}
SPOKEN: Json = {**HELLO, "modalities": ["text", "audio"], "audio": {"voice": "heart", "format": "pcm16"}, "seed": 7}
ANSWER = "You said: Hello."


class ScriptedThinker(FakeThinker):
    """Writes what a script says: texts, pauses in seconds, an error at last, or `None`: it never goes on."""

    def __init__(self, *script: str | float | EngineError | None) -> None:
        super().__init__()
        self._script = script

    async def stream(self, messages: Sequence[ChatMessage], options: ThinkOptions) -> AsyncGenerator[Thought, None]:
        self.writing += 1
        try:
            yield self._prompt(messages)
            for each in self._script:
                match each:
                    case str():
                        for character in each:
                            yield ThinkerToken(ord(character))
                    case float():
                        await asyncio.sleep(each)
                    case EngineError():
                        raise each
                    case None:
                        await asyncio.Event().wait()
            yield ThinkerEnd("stop")
        finally:
            self.writing -= 1


class EarlyEnd(FakeRunner):
    """Ends every speech after this many frames, whatever its text."""

    def __init__(self, frames: int) -> None:
        super().__init__(FAKE_CHAT_INFO)
        self._frames = frames

    def _ends(self, sequence: Any) -> bool:
        return bool(sequence.frames_made >= self._frames)


@contextmanager
def chat_server(
    thinker: Thinker | None = None, config: ServerConfig | None = None, runner: FakeRunner | None = None
) -> Iterator[LiveServer]:
    """A server with the model `fake-chat`."""
    engine = Engine(runner or FakeRunner(FAKE_CHAT_INFO), EngineConfig(max_streams=4))
    with live_server({"fake-chat": engine}, config, {"fake-chat": thinker or FakeThinker()}) as server:
        yield server


def ask(server: LiveServer, body: Json, **options: Any) -> httpx.Response:
    return httpx.post(server.url + PATH, json=body, **options)


def error_of(response: httpx.Response) -> tuple[int, str | None, str | None]:
    """Status, field and code of a refusal, whose four keys are all there."""
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return response.status_code, error["param"], error["code"]


@dataclass
class Streamed:
    """A streamed answer, put together."""

    transcript: str = ""
    content: str = ""
    unspoken: str = ""
    audio: bytes = b""
    finish_reason: str | None = None
    usage: Json | None = None
    error: Json | None = None
    audio_id: str | None = None
    expires_at: int | None = None
    done: bool = False
    order: list[str] = field(default_factory=list)
    """Names of the parts, in the order in which they came."""

    def take(self, event: Json) -> None:
        if "error" in event:
            self.error = event["error"]
            return
        assert event["object"] == "chat.completion.chunk"
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            self._take_delta(choice["delta"])

    def _take_delta(self, delta: Json) -> None:
        audio = delta.get("audio") or {}
        self.audio_id = self.audio_id or audio.get("id")
        assert audio.get("id") in (None, self.audio_id)
        self.expires_at = audio.get("expires_at", self.expires_at)
        self.content += delta.get("content") or ""
        self.transcript += audio.get("transcript", "")
        self.unspoken += audio.get("unspoken", "")
        self.audio += base64.b64decode(audio.get("data", ""))
        self.order += [name for name in ("role", "transcript", "data", "unspoken") if name in {**delta, **audio}]


def streamed(server: LiveServer, body: Json) -> Streamed:
    """Asks for a streamed answer, and reads it to its end or to the place where it breaks off."""
    answer = Streamed()
    with httpx.stream("POST", server.url + PATH, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        try:
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    answer.done = True
                elif line.startswith("data: "):
                    answer.take(json.loads(line[6:]))
        except httpx.RemoteProtocolError:
            assert not answer.done
    return answer


def png(pixels: NDArray[np.uint8]) -> str:
    """A picture as a data URL."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
