"""Conversations on live sockets with one odd message, made from the models of the messages; and their judgement."""

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from pydantic import BaseModel, TypeAdapter
from vivavoce_server.live.elevenlabs import TextMessage
from vivavoce_server.live.elevenlabs_multi import ContextMessage
from vivavoce_server.live.realtime_events import CLIENT_EVENTS
from vivavoce_server.live.websocket import MESSAGES
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.edge_requests import JSON_WORDS, is_refused_unread
from tests.support.edges import (
    Field,
    Literal,
    Schema,
    as_json,
    example,
    fields,
    numbers,
    numbers_in_texts,
    some_values,
    texts,
    values,
    with_value,
)
from tests.support.waiting import HUNG_S

Message = dict[str, Any]

OWN = "/v1/audio/speech/stream"
STREAM_INPUT = "/v1/text-to-speech/heart/stream-input"
MULTI_STREAM_INPUT = "/v1/text-to-speech/heart/multi-stream-input"
REALTIME = "/v1/realtime"
MAX_BYTES_A_CHARACTER = 10 * 3840
"""Most audio for each character that a client sent: ten frames. The fake engine says a character in one."""
LEAST_CHARACTERS = 100
SHORT_CHARS = 500
"""Longest text that is sent with odd numbers: a longer one is minutes of good speech."""
GOOD_CODES = frozenset({1000, 1002, 1005, 1008, 1009})
"""Close codes of a protocol, of a refusal, and of this client."""
LAST = "edge-last"
"""The id of an event that is no event, whose error says that the server has handled all before it."""
CONFIG: Message = {"type": "session.config", "voice": "heart", "response_format": "pcm"}
ITEM: Message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]}


@dataclass(frozen=True, slots=True)
class Talk:
    """One connection: its address, its messages, and the words of which an error must have one."""

    path: str
    odd: str
    messages: tuple[bytes, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Protocol:
    """A message of a protocol: its schema, a good one, and the messages around it."""

    path: str
    name: str
    schema: Schema
    good: Message
    before: tuple[Message, ...] = ()
    after: tuple[Message, ...] = ()


def protocols() -> Iterator[Protocol]:
    """Each kind of message of each protocol, from the models that parse them."""
    yield from _own()
    text = TextMessage.model_json_schema()
    yield Protocol(STREAM_INPUT, "text", text, {"text": "Hi. "}, after=({"text": ""},))
    first: tuple[Message, ...] = ({"text": " "},)
    yield Protocol(STREAM_INPUT, "more text", text, {"text": "Hi. "}, first, ({"text": ""},))
    context = ContextMessage.model_json_schema(by_alias=False)
    yield Protocol(MULTI_STREAM_INPUT, "text", context, {"text": "Hi. "}, after=({"close_socket": True},))
    for kind, model in CLIENT_EVENTS.items():
        yield _realtime(kind, model)


def _own() -> Iterator[Protocol]:
    root = MESSAGES.json_schema()
    end: tuple[Message, ...] = ({"type": "session.close"},)
    for kind, reference in root["discriminator"]["mapping"].items():
        schema = {"$ref": reference, **{key: value for key, value in root.items() if key == "$defs"}}
        good = CONFIG if kind == CONFIG["type"] else {"type": kind}
        good = {**good, "text": "Hi. "} if kind == "input.text" else good
        before = () if good is CONFIG else (CONFIG,)
        talk: tuple[Message, ...] = ({"type": "input.text", "text": "Hi."}, {"type": "input.done"})
        yield Protocol(OWN, kind, schema, good, before, (*(talk if good is CONFIG else ()), *end))


def _realtime(kind: str, model: type[BaseModel]) -> Protocol:
    schema = TypeAdapter(model).json_schema()
    good = example(schema, schema)
    assert isinstance(good, dict)
    if "item" in good:
        good["item"] = ITEM
    if kind == "response.create":
        good["response"] = {"input": [ITEM], "conversation": "none"}
    end: tuple[Message, ...] = ({"type": "no event", "event_id": LAST},)
    return Protocol(REALTIME, kind, schema, {"type": kind, **good}, after=end)


def talks_of(protocol: Protocol, thorough: bool = True) -> Iterator[Talk]:
    """Conversations with one odd value in this message: all, or some."""
    schema, path = protocol.schema, protocol.path
    for odd_field in fields(schema, schema):
        for edge in values(odd_field, schema) if thorough else some_values(odd_field, schema):
            odd = with_value(protocol.good, odd_field, edge.value, schema, schema)
            names = _words(odd_field) + (JSON_WORDS if is_refused_unread(edge.value) else ())
            yield talk_with(protocol, f"{odd_field.label} = {edge.label}", odd, names)
    for name, edge in numbers_in_texts():
        if name == "input" and protocol.name == "input.text" and len(str(edge.value)) < SHORT_CHARS:
            odd = {**protocol.good, "text": edge.value}
            yield talk_with(protocol, f"text = {edge.label}", odd, ("text", "input", "pause"))
        elif name == "voice" and path == OWN and protocol.good is CONFIG:
            yield talk_with(protocol, f"voice = {edge.label}", {**CONFIG, "voice": edge.value}, ("voice",))


def _words(odd_field: Field) -> tuple[str, ...]:
    """Words by which an error may name a field: its keys, and those that stand for it."""
    keys = tuple(str(part) for part in odd_field.path if isinstance(part, str))
    others = {
        "text": "input",
        "content_index": "item",
        "audio_end_ms": "item",
        "ref_audio": "voice",
        "response_id": "response",
    }
    return keys + tuple(others[key] for key in keys if key in others) + ("voice",) * (keys[0] == "speaker_embedding")


def talk_with(protocol: Protocol, odd: str, message: object, names: tuple[str, ...]) -> Talk:
    sent = (*map(as_json, protocol.before), as_json(message), *map(as_json, protocol.after))
    return Talk(protocol.path, f"{protocol.name}: {odd}", sent, names)


QUERIES: dict[str, tuple[str, ...]] = {
    STREAM_INPUT: ("seed", "output_format", "language_code", "model_id", "apply_text_normalization"),
    MULTI_STREAM_INPUT: ("seed", "inactivity_timeout", "auto_mode", "output_format", "language_code", "model_id"),
    REALTIME: ("model", "call_id", "intent"),
}
"""Fields in the addresses of sockets, which no model describes."""
ADDRESS_WORDS = {
    "output_format": ("format",),
    "language_code": ("language",),
    "model_id": ("model",),
    "apply_text_normalization": ("auto, on, off",),
}
"""Words that stand for a field of an address in the messages of ElevenLabs' protocols, which name no field."""


def talks_by_address() -> Iterator[Talk]:
    """Conversations whose address has one odd field."""
    texts_of: dict[str, tuple[Message, ...]] = {
        STREAM_INPUT: ({"text": "Hi. "}, {"text": ""}),
        MULTI_STREAM_INPUT: ({"text": "Hi. "}, {"close_socket": True}),
        REALTIME: ({"type": "no event", "event_id": LAST},),
    }
    for path, names in QUERIES.items():
        for name in names:
            for edge in (*numbers(()), *texts(())):
                text = edge.value.text if isinstance(edge.value, Literal) else str(edge.value)
                if len(text) < 10_000 and "\\ud" not in text:
                    sent = tuple(map(as_json, texts_of[path]))
                    yield Talk(
                        f"{path}?{urlencode({name: text})}",
                        f"{name} = {edge.label}",
                        sent,
                        (name, *ADDRESS_WORDS.get(name, ())),
                    )


async def hold(url: str, talk: Talk) -> str | None:
    """Holds the conversation. Returns the promise that the server breaks; None if it keeps all of them."""
    errors: list[str] = []
    audio_bytes = 0
    code: int | None = None
    try:
        async with (
            asyncio.timeout(HUNG_S),
            connect(url.replace("http", "ws") + talk.path, proxy=None, max_size=None) as connection,
        ):
            with suppress(ConnectionClosed):
                for message in talk.messages:
                    await connection.send(message.decode())
            running = 0
            ended = False
            with suppress(ConnectionClosed):
                while not (ended and running == 0):
                    received = await connection.recv()
                    heard, told = _taken(received)
                    audio_bytes += heard
                    errors += told
                    if talk.path.startswith(REALTIME) and isinstance(received, str):
                        running += _responses(received)
                        ended = ended or LAST in received
            await connection.close()
            code = connection.close_code
    except InvalidStatus as refused:
        errors.append(refused.response.body.decode(errors="replace"))
        if refused.response.status_code >= 500:
            return f"{talk.path[:80]}, {talk.odd}: {refused.response.status_code} {errors}"
        code = 1008
    except TimeoutError:
        return f"{talk.path[:80]}, {talk.odd}: no end"
    return _fault(talk, code, audio_bytes, [error for error in errors if LAST not in error])


def _taken(received: str | bytes) -> tuple[int, list[str]]:
    """Bytes of audio, and errors, of a message of any of the protocols."""
    if isinstance(received, bytes):
        return len(received), []
    message = json.loads(received)
    audio = message.get("audio") or (message.get("delta") if "output_audio.delta" in received[:200] else None)
    if isinstance(audio, str):
        return len(base64.b64decode(audio)), []
    return 0, [received] if message.get("error") or '"failed"' in received else []


def _responses(received: str) -> int:
    """+1 for a response that begins, -1 for one that has ended."""
    kind: str = json.loads(received)["type"]
    return int(kind == "response.created") - int(kind == "response.done")


def _fault(talk: Talk, code: int | None, audio_bytes: int, errors: list[str]) -> str | None:
    where = f"{talk.path[:80]}, {talk.odd}: "
    if code not in GOOD_CODES:
        return f"{where}closed with {code} {errors[:1]}"[:600]
    characters = max(LEAST_CHARACTERS, sum(map(len, talk.messages)))
    if audio_bytes > MAX_BYTES_A_CHARACTER * characters:
        return f"{where}{audio_bytes} bytes of audio"
    for error in errors:
        if "server_error" in error or '"bug"' in error:
            return f"{where}{error[:300]}"
    # Later messages build on the one at fault, so their errors name other things.
    if errors and not any(name in errors[0] for name in talk.names):
        return f"{where}names none of {talk.names}: {errors[0][:300]}"
    return None
