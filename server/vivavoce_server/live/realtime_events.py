"""Events of OpenAI's Realtime protocol: those that clients send, as pydantic models, and the form of those they get.

Fields that direct a language model, a microphone or a trace have no effect here and are not in the models.
"""

import json
import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from vivavoce_engine import MAX_BLEND_CHARS

from vivavoce_server.config import MAX_TEXT_CHARS
from vivavoce_server.errors import SHOWN_CHARS, ApiError, invalid
from vivavoce_server.json_bodies import parse_json
from vivavoce_server.schemas import Name, Speed, VoiceId

NOT_AVAILABLE = "not_available"
MAX_PARTS = 64
"""Most parts of an item."""
MAX_INPUT = 500
"""Most items that a response.create names."""
MAX_INSTRUCTIONS_CHARS = 2**17
Id = Annotated[str, Field(min_length=1, max_length=128)]
FormatType = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
RATES: dict[FormatType, int] = {"audio/pcm": 24000, "audio/pcmu": 8000, "audio/pcma": 8000}
"""The sample rate in Hz that each format has in this protocol."""
MAX_LISTED = 1024
"""Most elements of a list in an event."""
MAX_METADATA = 16
MAX_RATE = 192_000
MAX_AUDIO_MS = 2**31 - 1
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]


def _few(given: object) -> object:
    """Refuses a dict of too many keys before they are looked at."""
    if isinstance(given, dict) and len(given) > MAX_METADATA:
        raise PydanticCustomError("too_long", "there are at most {most} keys", {"most": MAX_METADATA})
    return given


class _Fields(BaseModel):
    """An object of an event. null means that a field is absent."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        return {name: given[name] for name in cls.model_fields if given.get(name) is not None}


class AudioFormat(_Fields):
    """A format of audio."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: FormatType = Field(description="Kind of the audio")
    rate: Annotated[int, Field(ge=1, le=MAX_RATE)] | None = Field(default=None, description="Sample rate in Hz")

    @model_validator(mode="after")
    def _has_its_rate(self) -> "AudioFormat":
        if self.rate not in (None, RATES[self.type]):
            raise ValueError(f"{self.type} has a rate of {RATES[self.type]} here")
        return self

    def as_json(self) -> dict[str, object]:
        return {"type": self.type, "rate": 24000} if self.type == "audio/pcm" else {"type": self.type}


class OutputSettings(_Fields):
    """Settings of the sound."""

    format: AudioFormat | None = Field(default=None, description="Format of the audio")
    voice: Annotated[str, Field(max_length=MAX_BLEND_CHARS)] | VoiceId | None = Field(
        default=None, description="The voice"
    )
    speed: Speed | None = Field(default=None, description="Factor of the speaking rate")


class AudioSettings(_Fields):
    """Settings of the sound. Those of a microphone have no effect."""

    output: OutputSettings | None = Field(default=None, description="Settings of the sound")


class Settings(_Fields):
    """The settings that a session and a response have in common."""

    output_modalities: Annotated[list[Name], Field(fail_fast=True, max_length=MAX_LISTED)] | None = Field(
        default=None, description='["audio"]'
    )
    tools: Annotated[list[Any], Field(max_length=MAX_LISTED)] | None = Field(
        default=None, description="Only an empty list is served"
    )
    audio: AudioSettings | None = Field(default=None, description="Settings of the sound")


class SessionSettings(Settings):
    """Settings of the connection."""

    type: Literal["realtime"] | None = Field(default=None, description="Kind of the session")
    model: Name | None = Field(default=None, description="A served model, or a name of OpenAI's")
    instructions: Annotated[str, Field(max_length=MAX_INSTRUCTIONS_CHARS)] | None = Field(
        default=None, description="Orders to a language model, which have no effect"
    )
    tool_choice: Name | None = Field(default=None, description="Has no effect")


class ContentPart(_Fields):
    """A part of an item."""

    type: Name = Field(description="`input_text`, `output_text`, `text`, `output_audio` or `audio`")
    text: Text | None = Field(default=None, description="The text, of parts in writing")
    transcript: Text | None = Field(default=None, description="The text, of parts with audio")


class Message(_Fields):
    """An item of a conversation, or a reference to one: type `item_reference`, with its id."""

    type: Name = Field(description="`message`, or `item_reference`")
    id: Id | None = Field(default=None, description="Name of the item")
    role: Literal["user", "assistant", "system"] = Field(
        default="user", description="Author of the text; only the user's is spoken"
    )
    content: Annotated[list[ContentPart], Field(fail_fast=True, max_length=MAX_PARTS)] = Field(
        default=[], description="The parts"
    )


class ResponseSettings(Settings):
    """Settings of a response."""

    conversation: Literal["auto", "none"] | None = Field(
        default=None, description="`none` keeps the response beside the conversation"
    )
    metadata: Annotated[dict[Name, Text], BeforeValidator(_few), Field(max_length=MAX_METADATA)] | None = Field(
        default=None, description="The client's own words, which the response repeats"
    )
    input: Annotated[list[Message], Field(fail_fast=True, max_length=MAX_INPUT)] | None = Field(
        default=None, description="Messages, of which the last one of the user is spoken"
    )


class SessionUpdate(_Fields):
    """New settings of the connection, any number of them."""

    session: SessionSettings = Field(description="The settings")


class ItemCreate(_Fields):
    """A message for the conversation."""

    item: Message = Field(description="The message")
    previous_item_id: Id | None = Field(default=None, description="The item before it; `root` for none")


class ItemDelete(_Fields):
    """An item is to go."""

    item_id: Id = Field(description="The item")


class ItemRetrieve(_Fields):
    """An item is to be told."""

    item_id: Id = Field(description="The item")


class ItemTruncate(_Fields):
    """Only the beginning of an item was heard."""

    item_id: Id = Field(description="The item")
    content_index: Annotated[int, Field(ge=0, le=MAX_LISTED, description="Number of the part")]
    audio_end_ms: Annotated[int, Field(ge=0, le=MAX_AUDIO_MS, description="Milliseconds that were heard")]


class ResponseCreate(_Fields):
    """Text is to be spoken."""

    response: ResponseSettings = Field(default=ResponseSettings(), description="Settings of the response")


class ResponseCancel(_Fields):
    """Speech is to stop at once."""

    response_id: Id | None = Field(default=None, description="The response; the conversation's unless given")


class AudioAppend(_Fields):
    """Audio of a microphone, which nothing here listens to."""


class AudioClear(_Fields):
    """The audio of a microphone is to go."""


ClientEvent = (
    SessionUpdate
    | ItemCreate
    | ItemDelete
    | ItemRetrieve
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
    | AudioAppend
    | AudioClear
)
CLIENT_EVENTS: dict[str, type[ClientEvent]] = {
    "session.update": SessionUpdate,
    "conversation.item.create": ItemCreate,
    "conversation.item.delete": ItemDelete,
    "conversation.item.retrieve": ItemRetrieve,
    "conversation.item.truncate": ItemTruncate,
    "response.create": ResponseCreate,
    "response.cancel": ResponseCancel,
    "input_audio_buffer.append": AudioAppend,
    "input_audio_buffer.clear": AudioClear,
}
REFUSED_EVENTS = {
    "input_audio_buffer.commit": "This server does not listen: it speaks given text. Send the text as an item",
    "output_audio_buffer.clear": "This server sends audio over WebSocket alone; send response.cancel",
}


def fields_of(message: str) -> dict[str, Any]:
    """The fields of a client's event.

    Raises:
        ApiError: 400, the message is not a JSON object.
    """
    fields = parse_json(message.encode(), "The event")
    if not isinstance(fields, dict):
        raise ApiError(400, "An event is a JSON object", None, "invalid_json")
    return fields


def parse(fields: dict[str, Any]) -> ClientEvent:
    """The event with these fields.

    Raises:
        ApiError: 400, the event is none of these, or a field is invalid; names the field.
    """
    kind = fields.get("type")
    if isinstance(kind, str) and kind in REFUSED_EVENTS:
        raise invalid("type", REFUSED_EVENTS[kind], NOT_AVAILABLE)
    if not isinstance(kind, str) or kind not in CLIENT_EVENTS:
        raise invalid(
            "type", f"There is no event {str(kind)[:SHOWN_CHARS]!r} here; there are {', '.join(CLIENT_EVENTS)}"
        )
    try:
        return CLIENT_EVENTS[kind].model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        param = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise invalid(param, f"Missing required field: {param}", "missing_required_parameter") from None
        raise invalid(param, f"{param}: {first['msg']}") from None


def event(kind: str, **fields: object) -> str:
    """A server's event."""
    return json.dumps({"type": kind, "event_id": new_id("event"), **fields}, ensure_ascii=False)


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(10)}"
