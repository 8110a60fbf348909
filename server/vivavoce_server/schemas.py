"""Bodies of requests, as pydantic models."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from vivavoce_engine import (
    EMBEDDING_MAX,
    MAX_BLEND_CHARS,
    MAX_BLEND_PARTS,
    MAX_BLEND_WEIGHT,
    MAX_TRANSCRIPT_CHARS,
    MIN_BLEND_WEIGHT,
    SEED_MAX,
)

from vivavoce_server.config import MAX_TEXT_CHARS, LeadingSilenceChoice
from vivavoce_server.formats import FormatName
from vivavoce_server.stage_names import StageChoice, StageName
from vivavoce_server.text_parts import language_of_code

TASK_NAMES = {"custom_voice": "CustomVoice", "voice_design": "VoiceDesign", "base": "Base"}
MAX_NAME_CHARS = 256
MAX_INSTRUCTIONS_CHARS = 16_384
MAX_REF_AUDIO_CHARS = 2**24
"""10 MiB in base64, with line breaks or signs in percent code."""
MAX_EMBEDDING = 4096
"""Most numbers of a speaker embedding. The largest model takes 2048."""
MAX_TOP_K = 65_536
MAX_FRAMES = 65_536
"""Longest speech that a request may ask for, in frames of 80 ms."""


class NullIsDefault:
    """Marks a field that may be null, which means its default: `Fields` takes it for absent."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"type": "null"}]}


class Fields(BaseModel):
    """An object of a client. An unknown field is an error; null means the default of every field that has one.

    An object with thousands of unknown fields costs as much as one with one of them, because only that one is reported.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_excess(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        fields = {field.alias or name: field for name, field in cls.model_fields.items()}
        known = {
            name: given[name]
            for name, field in fields.items()
            if name in given and (given[name] is not None or field.is_required())
        }
        unknown = next((name for name in given if name not in fields), None)
        return known if unknown is None else {**known, unknown: given[unknown]}


class VoiceId(Fields):
    """OpenAI's custom voice object."""

    id: Annotated[str, Field(max_length=MAX_BLEND_CHARS)]


# The engine refuses values out of range, also after a sum, with a better message.
EmbeddingValue = Annotated[float, Field(json_schema_extra={"minimum": -EMBEDDING_MAX, "maximum": EMBEDDING_MAX})]
Embedding = Annotated[list[EmbeddingValue], Field(fail_fast=True, max_length=MAX_EMBEDDING)]


class WeightedEmbedding(Fields):
    """One part of a mixed voice."""

    embedding: Embedding
    weight: Annotated[float, Field(ge=MIN_BLEND_WEIGHT, le=MAX_BLEND_WEIGHT), NullIsDefault()] = 1.0


def _kind_of_embedding(given: object) -> str:
    """The member of `GivenEmbedding` that its first element shows. Errors are then those of one member alone."""
    first = given[0] if isinstance(given, list | tuple) and given else None
    return "mix" if isinstance(first, dict | WeightedEmbedding) else "numbers"


GivenEmbedding = Annotated[
    Annotated[Embedding, Tag("numbers")]
    | Annotated[list[WeightedEmbedding], Field(fail_fast=True, max_length=MAX_BLEND_PARTS), Tag("mix")],
    Discriminator(_kind_of_embedding),
]
"""A speaker embedding, or several with their weights."""


class NormalizationOptions(Fields):
    """Kokoro-FastAPI's switches. Each turns stages of reading on or off; an absent one leaves them as they are.

    `normalize` comes first: true starts from all stages, false turns everything off.
    """

    SWITCHES: ClassVar[dict[str, tuple[StageName, ...]]] = {
        "unit_normalization": ("units",),
        "url_normalization": ("urls",),
        "email_normalization": ("emails",),
        "phone_normalization": ("phone_numbers",),
        "optional_pluralization_normalization": ("names",),
        "replace_remaining_symbols": ("names",),
    }
    """Switch → the stages that do its work."""

    normalize: bool | None = None
    unit_normalization: bool | None = None
    url_normalization: bool | None = None
    email_normalization: bool | None = None
    phone_normalization: bool | None = None
    optional_pluralization_normalization: bool | None = None
    replace_remaining_symbols: bool | None = None


# The pattern is for readers of the OpenAPI page. Blank text is refused elsewhere, with a better message.
InputText = Annotated[str, Field(max_length=MAX_TEXT_CHARS, json_schema_extra={"minLength": 1, "pattern": r"\S"})]
Transcript = Annotated[str, Field(json_schema_extra={"maxLength": MAX_TRANSCRIPT_CHARS})]
"""Transcript of a recording. The engine refuses a longer one, with a better message."""
Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
Language = Annotated[str, Field(max_length=MAX_NAME_CHARS), AfterValidator(language_of_code)]
"""A model's language, by its name or by a code of ISO 639 such as en, eng or en-US."""
Speed = Annotated[float, Field(ge=0.25, le=4)]
Seed = Annotated[int, Field(ge=0, le=SEED_MAX)]


class SpeechOptions(Fields):
    """Options of speech: OpenAI's fields, then extensions, with vLLM-Omni's names where it has them."""

    model: Name | None = None
    voice: Annotated[str, Field(max_length=MAX_BLEND_CHARS)] | VoiceId | None = None
    instructions: Annotated[str, Field(max_length=MAX_INSTRUCTIONS_CHARS)] | None = None
    response_format: Annotated[FormatName, NullIsDefault()] = "mp3"
    speed: Annotated[Speed, NullIsDefault()] = 1.0

    task_type: Literal["CustomVoice", "VoiceDesign", "Base"] | None = None
    language: Language | None = None
    seed: Seed | None = None
    temperature: Annotated[
        float | None, Field(ge=0, le=2, description="0, and any value below 0.01: always the most likely code")
    ] = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int | None, Field(ge=-1, le=MAX_TOP_K, description="-1 and 0 keep every code")] = None
    repetition_penalty: Annotated[float, Field(ge=1, le=2)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_FRAMES)] | None = None
    non_streaming_mode: bool | None = None
    initial_codec_chunk_frames: Annotated[int, Field(ge=1, le=MAX_FRAMES)] | None = None
    normalize: StageChoice | None = None
    normalization_options: NormalizationOptions | None = None
    word_timestamps: bool | None = None
    sample_rate: Literal[8000, 16000, 24000, 48000] | None = None
    leading_silence: Annotated[
        LeadingSilenceChoice | None,
        Field(
            description="Silence that the voice puts before its first word: `trim` drops all but 20 ms, `keep` nothing."
            " The default is the server's, which is `trim` unless its operator chose otherwise."
        ),
    ] = None
    ref_audio: Annotated[str, Field(max_length=MAX_REF_AUDIO_CHARS)] | None = None
    ref_text: Transcript | None = None
    x_vector_only_mode: bool | None = None
    speaker_embedding: GivenEmbedding | None = None

    @property
    def voice_name(self) -> str | None:
        """The name of the voice. An empty one, which clients send for a setting that was left open, is none."""
        return (self.voice.id if isinstance(self.voice, VoiceId) else self.voice) or None


class SpeechRequest(SpeechOptions):
    """Body of POST /v1/audio/speech."""

    input: InputText
    answer: Annotated[Literal["audio", "text"], Field(alias="return"), NullIsDefault()] = "audio"
    """With "text", the answer is a SpokenText, and fields of the audio have no effect."""
    stream_format: Annotated[Literal["audio", "sse"], NullIsDefault()] = "audio"
    stream: bool | None = None
