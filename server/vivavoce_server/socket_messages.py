"""Messages that the sockets send, as models for the AsyncAPI document (asyncapi.py).

The sockets write these messages themselves, without a model between. tests/server/test_asyncapi.py holds what a server
sends against these fields.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from vivavoce_server.errors import ErrorDetail
from vivavoce_server.live.realtime_events import AudioFormat
from vivavoce_server.schemas import VoiceId
from vivavoce_server.speaking_rate import RATE_CHARACTERS_ABOUT, RATE_WORDS_ABOUT

# ---- live text ------------------------------------------------------------------------------------------------


class Limits(BaseModel):
    """Limits that a client should know before it exceeds them."""

    first_message_s: float = Field(description="Seconds for a first message that has to bring the key")
    idle_s: float = Field(description="Seconds that an utterance waits for more text, once all its text is spoken")
    max_config_bytes: int = Field(description="Most bytes of a session.config")
    max_text_bytes: int = Field(description="Most bytes of any other message")
    max_utterance_chars: int = Field(description="Most characters of an utterance")
    max_unsent_bytes: int = Field(description="Bytes of audio that may wait for the client")


class SpokenPart(BaseModel):
    """A part of the text, of which all audio was sent. The last one may end with a word."""

    text: str = Field(description="The text as it came in")
    end_ms: int = Field(description="End of the part in the audio, in milliseconds")
    voice: str | None = Field(
        default=None,
        description="Name of its voice, in a dialogue; null for a pause, and for a voice without a name",
    )


class SpokenTurn(BaseModel):
    """A turn of a dialogue, and the seconds of the utterance's audio at which it is said."""

    index: int = Field(description="Number of the turn, from 0")
    voice: str | None = Field(description="Name of its voice; null if it has none")
    start: float = Field(description="Its beginning, in seconds")
    end: float = Field(description="Its end, in seconds; that of the audio if the turn was cut")


class SpokenWord(BaseModel):
    """A word of the text, and the seconds of the utterance's audio at which it is said."""

    word: str = Field(description="The word as it came in")
    start: float | None = Field(description="Its beginning, in seconds; null if it is not known")
    end: float | None = Field(description="Its end, in seconds; null if it is not known")
    text_start: int = Field(description="Its first character in the utterance's text, from 0")
    text_end: int = Field(description="The character behind its last one")


class SessionCreated(BaseModel):
    type: Literal["session.created"] = Field(description="Kind of the message")
    session_id: str = Field(description="Name of the connection in the log")
    model: str = Field(description="The model that speaks")
    limits: Limits = Field(description="Limits of the connection")


class AudioStart(BaseModel):
    type: Literal["audio.start"] = Field(description="Kind of the message")
    utterance_index: int = Field(description="Number of the utterance, from 0")
    format: str = Field(description="Format of the binary messages that follow")
    sample_rate: int = Field(description="Sample rate in Hz")


class AudioWords(BaseModel):
    type: Literal["audio.words"] = Field(description="Kind of the message")
    utterance_index: int = Field(description="Number of the utterance, from 0")
    words: list[SpokenWord] = Field(description="Words that begin in the audio so far, in order; each word comes once")


class AudioDone(BaseModel):
    type: Literal["audio.done"] = Field(description="Kind of the message")
    utterance_index: int = Field(description="Number of the utterance, from 0")
    duration_ms: int = Field(description="Milliseconds of audio that were sent")
    total_bytes: int = Field(description="Bytes that were sent")
    frames: int = Field(description="Codec frames of 80 ms that were sent")
    cancelled: bool = Field(description="True if the utterance broke off")
    parts: list[SpokenPart] = Field(description="The text that was said for certain, part by part")
    spoken_text_chars: int = Field(
        description="Characters of the text of which all audio was sent, up to a word if the model has word times"
    )
    characters_per_minute: float | None = Field(description=RATE_CHARACTERS_ABOUT)
    words_per_minute: float | None = Field(description=RATE_WORDS_ABOUT)
    text_begun: str = Field(default="", description="The next word or part, of which some audio was sent")
    segments: list[SpokenTurn] = Field(default=[], description="The turns that were sent, of a dialogue")
    warnings: list[str] = Field(default=[], description="Sentences about what was not spoken as it was asked for")
    finish_reason: Literal["length"] = Field(default="length", description="max_new_tokens ended the speech")


class SessionDone(BaseModel):
    type: Literal["session.done"] = Field(description="Kind of the message")
    utterances: int = Field(description="Utterances of the connection")


class LiveError(BaseModel):
    type: Literal["error"] = Field(description="Kind of the message")
    message: str = Field(description="The reason, for people")
    error: ErrorDetail = Field(description="OpenAI's error object")


# ---- ElevenLabs -----------------------------------------------------------------------------------------------


class CharacterAlignment(BaseModel):
    """Characters of the text, in order, and milliseconds at which each is said."""

    chars: list[str] = Field(description="The characters; any blank is a space")
    charStartTimesMs: list[int] = Field(
        description="Beginnings, from the end of the alignment before; with sync_alignment=true, in the file"
    )
    charDurationsMs: list[int] = Field(description="Lengths")


class StreamAudio(BaseModel):
    audio: str = Field(description="The next bytes of the file, in base64; empty if only characters are left to tell")
    isFinal: None = Field(description="null: more follows")
    alignment: CharacterAlignment | None = Field(description="Characters as they came in; null if none is certain now")
    normalizedAlignment: CharacterAlignment | None = Field(
        description="Characters as they are said; null if none is certain now"
    )


class StreamFinal(BaseModel):
    isFinal: Literal[True] = Field(description="Everything has been sent")
    warnings: list[str] = Field(default=[], description="Sentences about what was not spoken as it was asked for")


class StreamError(BaseModel):
    message: str = Field(description="The reason, for people")
    error: str | None = Field(description="The reason, for programs")
    code: Literal[1008] = Field(description="The close code of a refusal, also where the connection stays open")


ContextId = Annotated[str, Field(description="The context that this belongs to")]


class ContextAudio(StreamAudio):
    contextId: ContextId


class ContextFinal(StreamFinal):
    contextId: ContextId


class ContextError(StreamError):
    contextId: str = Field(default="", description="The context at fault; absent if it is none")


# ---- OpenAI Realtime ------------------------------------------------------------------------------------------


class Event(BaseModel):
    """The fields of every event."""

    type: str = Field(description="Kind of the event")
    event_id: str = Field(description="Name of the event")


class RealtimePart(BaseModel):
    """A part of an item, or of a response."""

    type: str = Field(description="`input_text`, `output_text`, `output_audio` or `audio`")
    text: str = Field(default="", description="The text, of parts in writing")
    transcript: str = Field(default="", description="The text that is spoken, of parts with audio")


class RealtimeItem(BaseModel):
    """A message of the conversation."""

    id: str = Field(description="Name of the item")
    object: Literal["realtime.item"] = Field(description="Kind of the object")
    type: Literal["message"] = Field(description="Kind of the item")
    role: Literal["user", "assistant", "system"] = Field(description="Author of the text")
    status: Literal["in_progress", "completed", "incomplete"] = Field(description="`incomplete` if it broke off")
    content: list[RealtimePart] = Field(description="The parts")


class RealtimeOutput(BaseModel):
    """Settings of the sound."""

    format: AudioFormat = Field(description="Format of the audio")
    voice: str | VoiceId = Field(description="The voice")
    speed: float = Field(description="Factor of the speaking rate")


class RealtimeAudio(BaseModel):
    """Settings of both directions, of which only `output` has an effect."""

    input: dict[str, Any] = Field(default={}, description="Nothing listens: all is null but the format")
    output: RealtimeOutput = Field(description="Settings of the sound")


class RealtimeSession(BaseModel):
    """Settings of the connection."""

    id: str = Field(description="Name of the connection")
    object: Literal["realtime.session"] = Field(description="Kind of the object")
    type: Literal["realtime"] = Field(description="Kind of the session")
    model: str = Field(description="The model, as the client named it")
    output_modalities: list[str] = Field(description='["audio"]')
    instructions: str = Field(description="The client's instructions, which have no effect")
    tools: list[Any] = Field(description="[]: nothing here calls tools")
    tool_choice: str = Field(description="The client's choice, which has no effect")
    max_output_tokens: Literal["inf"] = Field(description="No limit")
    tracing: None = Field(description="null: nothing is traced")
    audio: RealtimeAudio = Field(description="Settings of the sound")


class RealtimeUsage(BaseModel):
    """Usage of a response."""

    total_tokens: int = Field(description="The sum of both")
    input_tokens: int = Field(description="Tokens of the text")
    output_tokens: int = Field(description="Codec frames of 80 ms that were sent")
    input_token_details: dict[str, int] = Field(description="Tokens by kind")
    output_token_details: dict[str, int] = Field(description="Tokens by kind")
    characters_per_minute: float | None = Field(description=RATE_CHARACTERS_ABOUT)
    words_per_minute: float | None = Field(description=RATE_WORDS_ABOUT)


class RealtimeResponse(BaseModel):
    """A response."""

    id: str = Field(description="Name of the response")
    object: Literal["realtime.response"] = Field(description="Kind of the object")
    status: Literal["in_progress", "completed", "cancelled", "failed"] = Field(description="State of the response")
    status_details: dict[str, Any] | None = Field(description="The reason, if it was cancelled or failed")
    output: list[RealtimeItem] = Field(description="The item that was spoken, once the response is over")
    conversation_id: str | None = Field(description="The conversation; null for a response beside it")
    output_modalities: list[str] = Field(description='["audio"]')
    max_output_tokens: Literal["inf"] = Field(description="No limit")
    audio: RealtimeAudio = Field(description="Settings of the sound")
    metadata: dict[str, str] | None = Field(description="The client's own words")
    usage: RealtimeUsage | None = Field(description="Usage, once the response is over")


class SessionEvent(Event):
    session: RealtimeSession = Field(description="The settings that hold now")


class ItemEvent(Event):
    previous_item_id: str | None = Field(description="The item before it")
    item: RealtimeItem = Field(description="The item")


class ItemRetrieved(Event):
    item: RealtimeItem = Field(description="The item")


class ItemDeleted(Event):
    item_id: str = Field(description="The item that is gone")


class ItemTruncated(Event):
    item_id: str = Field(description="The item")
    content_index: int = Field(description="Number of the part")
    audio_end_ms: int = Field(description="Milliseconds that were heard")


class ResponseEvent(Event):
    response: RealtimeResponse = Field(description="The response")


class OutputItemEvent(Event):
    response_id: str = Field(description="The response")
    output_index: int = Field(description="0: a response has one item")
    item: RealtimeItem = Field(description="The item")


class OutputEvent(Event):
    response_id: str = Field(description="The response")
    item_id: str = Field(description="The item")
    output_index: int = Field(description="0: a response has one item")
    content_index: int = Field(description="0: an item has one part")


class PartEvent(OutputEvent):
    part: RealtimePart = Field(description="The part")


class DeltaEvent(OutputEvent):
    delta: str = Field(description="Audio in base64, or the text")


class TranscriptEvent(OutputEvent):
    transcript: str = Field(description="The text that was said")


class RealtimeFault(ErrorDetail):
    """OpenAI's error object of the protocol."""

    event_id: str | None = Field(description="The client's event at fault")


class ErrorEvent(Event):
    error: RealtimeFault = Field(description="The error")


REALTIME_EVENTS: dict[str, type[Event]] = {
    "session.created": SessionEvent,
    "session.updated": SessionEvent,
    "conversation.item.added": ItemEvent,
    "conversation.item.done": ItemEvent,
    "conversation.item.retrieved": ItemRetrieved,
    "conversation.item.deleted": ItemDeleted,
    "conversation.item.truncated": ItemTruncated,
    "input_audio_buffer.cleared": Event,
    "response.created": ResponseEvent,
    "response.output_item.added": OutputItemEvent,
    "response.content_part.added": PartEvent,
    "response.output_audio_transcript.delta": DeltaEvent,
    "response.output_audio.delta": DeltaEvent,
    "response.output_audio.done": OutputEvent,
    "response.output_audio_transcript.done": TranscriptEvent,
    "response.content_part.done": PartEvent,
    "response.output_item.done": OutputItemEvent,
    "response.done": ResponseEvent,
    "error": ErrorEvent,
}
"""Type of an event that the Realtime socket sends → its fields."""
