"""GET /asyncapi.json: the WebSockets as an AsyncAPI 3 document, for tools and for the page /asyncapi.

Messages of clients are the models that the sockets parse; messages to them are those of socket_messages.py. Each has an
example, which tests send to a server.
"""

import asyncio
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from types import ModuleType
from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from vivavoce_server.access import ELEVENLABS_HEADER, Keyring
from vivavoce_server.deadlines import DESCRIPTION as TIMEOUT_ABOUT
from vivavoce_server.deadlines import HEADER as TIMEOUT_HEADER
from vivavoce_server.live import elevenlabs, elevenlabs_multi, realtime, websocket
from vivavoce_server.live.closing import Code
from vivavoce_server.live.realtime_events import CLIENT_EVENTS
from vivavoce_server.socket_examples import REALTIME_RECEIVED, REALTIME_SENT
from vivavoce_server.socket_messages import (
    REALTIME_EVENTS,
    AudioDone,
    AudioStart,
    AudioWords,
    ContextAudio,
    ContextError,
    ContextFinal,
    LiveError,
    SessionCreated,
    SessionDone,
    StreamAudio,
    StreamError,
    StreamFinal,
)

ASYNCAPI: Final = "3.0.0"
REF: Final = "#/components/schemas/{model}"
JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"
CLOSE_CODES: Final = {
    Code.NORMAL: "The session has ended as its client asked.",
    Code.PROTOCOL: "A message is none of this protocol.",
    Code.POLICY: "The key or an option is refused, or the client does not read, or sends too much.",
    Code.TOO_LARGE: "A message is too large.",
    Code.FAILURE: "The server has a fault.",
    Code.TRY_AGAIN_LATER: "The server is full or stops: try again later.",
}
SECURITY: Final = {
    "key": {"type": "http", "scheme": "bearer", "description": "One of the server's keys"},
    "key_in_query": {"type": "httpApiKey", "in": "query", "name": "api_key", "description": "For browsers"},
    "elevenlabs_key": {
        "type": "httpApiKey",
        "in": "header",
        "name": ELEVENLABS_HEADER,
        "description": "As ElevenLabs' clients send it",
    },
    "elevenlabs_key_in_query": {
        "type": "httpApiKey",
        "in": "query",
        "name": ELEVENLABS_HEADER,
        "description": "As ElevenLabs' clients send it, for browsers",
    },
}
"""Places of the key in a handshake, for a server with keys."""


@dataclass(frozen=True)
class Message:
    """A message. `type` is the value of its field `type` where the model leaves it open; None elsewhere."""

    name: str
    model: type[BaseModel] | None
    example: object
    about: str = ""
    type: str | None = None

    def as_json(self) -> dict[str, Any]:
        if self.model is None:
            binary = {"type": "string", "format": "binary"}
            return {
                "name": self.name,
                "summary": self.about,
                "contentType": OCTETS,
                "payload": binary,
            }
        payload: dict[str, Any] = {"$ref": REF.format(model=self.model.__name__)}
        if self.type is not None:
            known = {"type": "string", "const": self.type, "description": "Kind of the event"}
            event_id = {"type": "string", "description": "Name of the event, which an error about it repeats"}
            own = {"type": "object", "required": ["type"], "properties": {"type": known, "event_id": event_id}}
            payload = {"allOf": [payload, own]}
        about = self.about or inspect.cleandoc(self.model.__doc__ or "").partition("\n")[0]
        return {
            "name": self.name,
            "summary": about or self.name,
            "contentType": JSON,
            "payload": payload,
            "examples": [{"name": "example", "payload": self.example}],
        }


@dataclass(frozen=True)
class Channel:
    """A WebSocket. The docstring of its module is its description."""

    name: str
    module: ModuleType
    title: str
    received: tuple[Message, ...]
    sent: tuple[Message, ...]
    security: tuple[str, ...]
    query: Mapping[str, tuple[str, object]] = field(default_factory=dict)
    """Parameter of the query → its meaning and an example."""

    @property
    def address(self) -> str:
        [route] = self.module.router.routes
        assert isinstance(route.path, str)
        return route.path

    @property
    def messages(self) -> tuple[Message, ...]:
        return (*self.received, *self.sent)

    def as_json(self) -> dict[str, Any]:
        voice = {"voice_id": {"description": "A voice of this server, or an id of ElevenLabs", "examples": ["heart"]}}
        query = {
            name: {"type": "string", "description": about, "examples": [example]}
            for name, (about, example) in self.query.items()
        }
        timeout = {"type": "number", "exclusiveMinimum": 0, "description": TIMEOUT_ABOUT, "examples": [5.0]}
        binding = {
            "method": "GET",
            "query": {"type": "object", "properties": query},
            "headers": {"type": "object", "properties": {TIMEOUT_HEADER: timeout}},
            "bindingVersion": "0.1.0",
        }
        return {
            "address": self.address,
            "title": self.title,
            "description": f"```text\n{inspect.cleandoc(self.module.__doc__ or '')}\n```",
            "servers": [{"$ref": "#/servers/this"}],
            **({"parameters": voice} if "{voice_id}" in self.address else {}),
            "messages": {message.name: message.as_json() for message in self.messages},
            "bindings": {"ws": binding},
            "x-close-codes": {str(code.value): about for code, about in CLOSE_CODES.items()},
        }

    def operations(self, has_keys: bool) -> dict[str, Any]:
        """The two operations of the server: it receives the client's messages, and sends its own."""
        security = {"security": [{"$ref": f"#/components/securitySchemes/{name}"} for name in self.security]}
        operations = {}
        for action, verb, messages in (("receive", "Receive", self.received), ("send", "Send", self.sent)):
            operations[f"{self.name}.{action}"] = {
                "action": action,
                "channel": {"$ref": f"#/channels/{self.name}"},
                "title": f"{verb} messages: {self.title}",
                "messages": [{"$ref": f"#/channels/{self.name}/messages/{message.name}"} for message in messages],
                **(security if has_keys else {}),
            }
        return operations


ELEVENLABS_QUERY: Final = {
    "model_id": ("A served model; names that begin with `eleven_` mean the first one", "eleven_flash_v2_5"),
    "output_format": ("Format, sample rate and bit rate by ElevenLabs' names", "mp3_44100_128"),
    "language_code": ("Language of the text, as an ISO 639-1 code", "en"),
    "seed": ("Seed of the random numbers: it makes speech repeatable", "42"),
    "apply_text_normalization": ("Reading of the text: `auto`, `on` or `off`", "auto"),
    "sync_alignment": ("`true` counts times of characters from the beginning of the file", "true"),
}
ALIGNMENT: Final = {"chars": ["H", "i"], "charStartTimesMs": [20, 100], "charDurationsMs": [80, 80]}
AUDIO_EXAMPLE: Final = {
    "audio": "UklGRg==",
    "isFinal": None,
    "alignment": ALIGNMENT,
    "normalizedAlignment": ALIGNMENT,
}
ERROR_EXAMPLE: Final = {"message": "There is no voice 'hart'", "error": "voice_not_found", "code": 1008}
FAULT: Final = {
    "message": "speed: Input should be less than or equal to 4",
    "type": "invalid_request_error",
    "param": "speed",
    "code": "invalid_value",
}
LIMITS: Final = {
    "first_message_s": 10.0,
    "idle_s": 30.0,
    "max_config_bytes": 4194304,
    "max_text_bytes": 131072,
    "max_utterance_chars": 65536,
    "max_unsent_bytes": 4194304,
}
LIVE: Final = Channel(
    "live",
    websocket,
    "Live text",
    received=(
        Message("session.config", websocket.SessionConfig, {"type": "session.config", "voice": "heart", "seed": 5}),
        Message("input.text", websocket.InputText, {"type": "input.text", "text": "I speak while "}),
        Message("input.done", websocket.InputDone, {"type": "input.done"}),
        Message("input.cancel", websocket.InputCancel, {"type": "input.cancel"}),
        Message("session.close", websocket.SessionClose, {"type": "session.close"}),
    ),
    sent=(
        Message(
            "session.created",
            SessionCreated,
            {"type": "session.created", "session_id": "6f1c", "model": "vivavoce-small-en", "limits": LIMITS},
            "The first session.config is valid.",
        ),
        Message(
            "audio.start",
            AudioStart,
            {"type": "audio.start", "utterance_index": 0, "format": "pcm", "sample_rate": 24000},
            "The audio of an utterance begins.",
        ),
        Message("audio", None, None, "The next bytes of the utterance's file."),
        Message(
            "audio.words",
            AudioWords,
            {
                "type": "audio.words",
                "utterance_index": 0,
                "words": [{"word": "speak", "start": 0.16, "end": 0.56, "text_start": 2, "text_end": 7}],
            },
            "Words of the audio before it, with their times, if the session asks for them by `word_timestamps`.",
        ),
        Message(
            "audio.done",
            AudioDone,
            {
                "type": "audio.done",
                "utterance_index": 0,
                "duration_ms": 1120,
                "total_bytes": 53760,
                "frames": 14,
                "cancelled": False,
                "parts": [{"text": "I speak while ", "end_ms": 1120}],
                "spoken_text_chars": 14,
                "characters_per_minute": 696.4,
                "words_per_minute": 160.7,
            },
            "The audio of the utterance has ended. The last fields are there only where they say something.",
        ),
        Message("session.done", SessionDone, {"type": "session.done", "utterances": 1}, "Everything has been sent."),
        Message(
            "error",
            LiveError,
            {"type": "error", "message": FAULT["message"], "error": FAULT},
            "Something cannot be served. The connection stays open, unless a close follows.",
        ),
    ),
    security=("key", "key_in_query"),
    query={"api_key": ("The key, for browsers", "sk-1234")},
)
STREAM_INPUT: Final = Channel(
    "streamInput",
    elevenlabs,
    "ElevenLabs' protocol for one text",
    received=(Message("text", elevenlabs.TextMessage, {"text": "Some words ", "voice_settings": {"speed": 1.0}}),),
    sent=(
        Message("audio", StreamAudio, AUDIO_EXAMPLE, "The next bytes of the session's one file."),
        Message("final", StreamFinal, {"isFinal": True}, "Everything has been sent."),
        Message("error", StreamError, ERROR_EXAMPLE, "An error, after which the session ends without a final message."),
    ),
    security=("elevenlabs_key", "elevenlabs_key_in_query", "key"),
    query=ELEVENLABS_QUERY,
)
MULTI_STREAM_INPUT: Final = Channel(
    "multiStreamInput",
    elevenlabs_multi,
    "ElevenLabs' protocol for several texts",
    received=(Message("text", elevenlabs_multi.ContextMessage, {"text": "Some words ", "context_id": "turn-1"}),),
    sent=(
        Message(
            "audio", ContextAudio, {**AUDIO_EXAMPLE, "contextId": "turn-1"}, "The next bytes of the context's file."
        ),
        Message("final", ContextFinal, {"isFinal": True, "contextId": "turn-1"}, "The context is over."),
        Message("error", ContextError, {**ERROR_EXAMPLE, "contextId": "turn-1"}, "An error."),
    ),
    security=("elevenlabs_key", "elevenlabs_key_in_query", "key"),
    query={
        **ELEVENLABS_QUERY,
        "auto_mode": ("`true` puts a blank between messages, each of which is then a sentence", "true"),
        "inactivity_timeout": ("Seconds without a message after which a context is closed, at most 180", "20"),
    },
)
REALTIME: Final = Channel(
    "realtime",
    realtime,
    "OpenAI Realtime for given text",
    received=tuple(
        Message(name, model, {"type": name, **REALTIME_RECEIVED[name]}, type=name)
        for name, model in CLIENT_EVENTS.items()
    ),
    sent=tuple(
        Message(f"server.{name}", model, {"type": name, "event_id": "event_1", **REALTIME_SENT[name]}, name, name)
        for name, model in REALTIME_EVENTS.items()
    ),
    security=("key",),
    query={"model": ("A served model, or a name of OpenAI's, which means the first one", "gpt-realtime")},
)
CHANNELS: Final = (LIVE, REALTIME, STREAM_INPUT, MULTI_STREAM_INPUT)

router = APIRouter(include_in_schema=False)


def document(host: str, scheme: str, root_path: str, has_keys: bool) -> dict[str, Any]:
    """The AsyncAPI document of a server at this address. `root_path` is a prefix that a proxy puts before its paths."""
    return {
        "asyncapi": ASYNCAPI,
        "info": {
            "title": "Vivavoce: WebSockets",
            "version": version("vivavoce-speech"),
            "description": "Live text in, speech out. The routes of HTTP are in openapi.json.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": JSON,
        "servers": {
            "this": {
                "host": host,
                "protocol": "wss" if scheme == "https" else "ws",
                **({"pathname": root_path} if root_path else {}),
            }
        },
        "channels": {channel.name: channel.as_json() for channel in CHANNELS},
        "operations": {name: each for channel in CHANNELS for name, each in channel.operations(has_keys).items()},
        "components": {
            "schemas": _schemas(),
            **({"securitySchemes": SECURITY} if has_keys else {}),
        },
    }


@cache
def _schemas() -> dict[str, Any]:
    models = dict.fromkeys(message.model for channel in CHANNELS for message in channel.messages)
    wanted: list[tuple[type[BaseModel], JsonSchemaMode]] = [(model, "validation") for model in models if model]
    _, definitions = models_json_schema(wanted, ref_template=REF)
    schemas: dict[str, Any] = definitions["$defs"]
    return schemas


@router.get("/asyncapi.json")
async def asyncapi(request: Request) -> dict[str, Any]:
    keyring = request.app.state.keyring
    assert isinstance(keyring, Keyring)
    prefix = request.scope.get("root_path", "").rstrip("/")
    # The models are described at the first request, which takes long for an event loop.
    return await asyncio.to_thread(document, request.url.netloc, request.url.scheme, prefix, keyring.wanted)
