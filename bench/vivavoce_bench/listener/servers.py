"""Servers that can be measured, and the request fields that make each stream 16-bit mono PCM at 24 kHz.

Taken from their own documentation, late in 2026: vLLM-Omni docs/serving/speech_api.md, sglang-omni
docs/cookbook/qwen3_tts.md, nari-qwen3-tts src/nari_qwen3_tts/api/schemas.py and docs/websocket.md, Kokoro-FastAPI
api/src/structures/schemas.py, OpenAI's API reference. As in nari-labs' method, a server that knows `non_streaming_mode`
is asked to read one text token with each frame.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from vivavoce_client.live_transport import STREAM_PATH
from vivavoce_client.protocol import PCM, key_headers

Transport = Literal["http", "sse", "websocket"]
TRANSPORTS: tuple[Transport, ...] = ("http", "sse", "websocket")
Fields = Mapping[str, Any]
TEXT_AS_IT_GOES: Fields = {"non_streaming_mode": False}


@dataclass(frozen=True, slots=True)
class LiveProtocol:
    """The messages of a WebSocket that takes text in pieces. Names are values of `type`.

    The server sends `greeting`, the client `config`, the server `ready`. A message that is None is not sent. Then the
    client sends texts and `end`, and the server sends binary audio and `done`. If `numbered`, texts carry their number
    as `sequence`.
    """

    done: str
    ready: str | None
    path: str = STREAM_PATH
    subprotocol: str | None = None
    greeting: str | None = None
    config: str = "session.config"
    config_fields: Fields = field(default_factory=dict)
    text: str = "input.text"
    end: str = "input.done"
    numbered: bool = False

    def text_message(self, number: int, text: str) -> str:
        return self._message(self.text, number, text=text)

    def end_message(self, number: int) -> str:
        return self._message(self.end, number)

    def _message(self, kind: str, number: int, **fields: object) -> str:
        sequence = {"sequence": number} if self.numbered else {}
        return json.dumps({"type": kind, **sequence, **fields}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Server:
    """Requests to one kind of server. `sse` and `live` are None if the server does not have them."""

    voice: str
    http: Fields
    sse: Fields | None = None
    live: LiveProtocol | None = None
    model: str | None = None
    takes_seed: bool = False

    @property
    def transports(self) -> tuple[Transport, ...]:
        has = {"http": True, "sse": self.sse is not None, "websocket": self.live is not None}
        return tuple(transport for transport in TRANSPORTS if has[transport])


SERVERS: Mapping[str, Server] = {
    "vivavoce": Server(
        voice="alloy",
        http={"stream_format": "audio", **TEXT_AS_IT_GOES},
        sse={"stream_format": "sse", **TEXT_AS_IT_GOES},
        live=LiveProtocol(ready="session.created", done="audio.done"),
        takes_seed=True,
    ),
    "vllm-omni": Server(
        voice="vivian",
        http={"stream": True, "stream_format": "audio", **TEXT_AS_IT_GOES},
        sse={"stream": True, "stream_format": "sse", **TEXT_AS_IT_GOES},
        live=LiveProtocol(ready=None, done="session.done", config_fields={"stream_audio": True}),
    ),
    "sglang-omni": Server(
        voice="default",
        http={"stream": True, **TEXT_AS_IT_GOES},
        live=LiveProtocol(ready=None, done="session.done", config_fields={"stream_audio": True}),
        takes_seed=True,
    ),
    "nari-qwen3-tts": Server(
        voice="ryan",
        http={"stream": True, **TEXT_AS_IT_GOES},
        live=LiveProtocol(
            path="/v1/audio/speech/ws",
            subprotocol="nari.speech.v1",
            greeting="session.created",
            config="request.start",
            ready="request.configured",
            text="input_text.append",
            end="input_text.end",
            done="response.done",
            numbered=True,
        ),
        takes_seed=True,
    ),
    "kokoro-fastapi": Server(voice="af_heart", http={"stream": True}, model="kokoro"),
    "openai": Server(
        voice="alloy", http={"stream_format": "audio"}, sse={"stream_format": "sse"}, model="gpt-4o-mini-tts"
    ),
}


@dataclass(frozen=True, slots=True)
class Target:
    """One server at one address, with the options of its requests. `fields` are the user's and override all others."""

    kind: str
    url: str
    transport: Transport = "http"
    model: str | None = None
    voice: str | None = None
    fields: Fields = field(default_factory=dict)
    api_key: str | None = None
    word_s: float = 0.01
    """Seconds from one word of a live text to the next."""
    frames_per_char: float | None = None
    """Frames of speech to ask for per character of text, for random weights, whose speech does not end by itself."""

    def __post_init__(self) -> None:
        if self.kind not in SERVERS:
            raise ValueError(f"there is no server {self.kind!r}; there are {', '.join(SERVERS)}")
        if self.transport not in self.server.transports:
            raise ValueError(f"{self.kind} has no {self.transport}; it has {', '.join(self.server.transports)}")
        if self.transport == "websocket" and self.frames_per_char is not None:
            raise ValueError("a live text's length is not known in advance, so a length of speech cannot be requested")

    @property
    def server(self) -> Server:
        return SERVERS[self.kind]

    @property
    def headers(self) -> dict[str, str]:
        return key_headers(self.api_key)

    def body(self, text: str, seed: int) -> dict[str, Any]:
        """JSON body of an HTTP request."""
        special = self.server.sse if self.transport == "sse" else self.server.http
        return {"input": text, **self._common(seed), **self._length(text), **(special or {}), **self.fields}

    def config(self, seed: int) -> dict[str, Any]:
        """Message that opens a live session."""
        live = self.server.live
        assert live is not None
        return {"type": live.config, **self._common(seed), **live.config_fields, **self.fields}

    def _length(self, text: str) -> Fields:
        if self.frames_per_char is None:
            return {}
        return {"max_new_tokens": max(1, round(self.frames_per_char * len(text)))}

    def _common(self, seed: int) -> dict[str, Any]:
        model = self.model or self.server.model
        common: dict[str, Any] = {"voice": self.voice or self.server.voice, "response_format": PCM}
        if model is not None:
            common["model"] = model
        if self.server.takes_seed:
            common["seed"] = seed
        return common
