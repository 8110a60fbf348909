"""Bodies of requests, as pydantic models."""

from collections.abc import Mapping
from difflib import get_close_matches
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
from pydantic.config import JsonDict
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, ValidationError
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
from vivavoce_server.errors import UNKNOWN_FIELD
from vivavoce_server.formats import FormatName
from vivavoce_server.stage_names import StageChoice, StageName
from vivavoce_server.text_parts import LONGEST_TURN_PAUSE_S, MAX_TURNS, language_of_code

TASK_NAMES = {"custom_voice": "CustomVoice", "voice_design": "VoiceDesign", "base": "Base", "chat": "Chat"}
MAX_NAME_CHARS = 256
MAX_INSTRUCTIONS_CHARS = 16_384
MAX_REF_AUDIO_CHARS = 2**24
"""10 MiB in base64, with line breaks or signs in percent code."""
MAX_EMBEDDING = 4096
"""Most numbers of a speaker embedding. The largest model takes 2048."""
MAX_TOP_K = 65_536
MAX_GRANULARITIES = 8
MAX_FRAMES = 65_536
"""Longest speech that a request may ask for, in frames of 80 ms."""


class NullIsDefault:
    """Marks a field that may be null, which means its default: `Fields` takes it for absent."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [handler(schema), {"type": "null"}]}


class Fields(BaseModel):
    """An object of a client. An unknown field is an error; null means the default of every field that has one.

    An object with thousands of unknown fields costs as much as one with one of them, because only that one is reported,
    with the field that may be meant. A misspelt field is reported before one that is missing.
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
        if (unknown := next((name for name in given if name not in fields), None)) is not None:
            near = get_close_matches(str(unknown)[:MAX_NAME_CHARS].casefold(), fields, 1)
            reason = PydanticCustomError(UNKNOWN_FIELD, f"; did you mean {near[0]}?" if near else "")
            raise ValidationError.from_exception_data(
                cls.__name__, [InitErrorDetails(type=reason, loc=(str(unknown),), input=None)]
            )
        return known


TurnPause = Annotated[float, Field(ge=0, le=LONGEST_TURN_PAUSE_S)]
"""Silence between the turns of two voices, in seconds."""


class VoiceId(Fields):
    """OpenAI's custom voice object."""

    id: Annotated[str, Field(max_length=MAX_BLEND_CHARS, description="The voice, as in `voice`", examples=["heart"])]


# The engine refuses values out of range, also after a sum, with a better message.
EmbeddingValue = Annotated[float, Field(json_schema_extra={"minimum": -EMBEDDING_MAX, "maximum": EMBEDDING_MAX})]
Embedding = Annotated[
    list[EmbeddingValue], Field(fail_fast=True, max_length=MAX_EMBEDDING, examples=[[0.013, -0.021, 0.004]])
]


class WeightedEmbedding(Fields):
    """One part of a mixed voice."""

    embedding: Annotated[Embedding, Field(description="A speaker embedding, as long as the model's embeddings")]
    weight: Annotated[
        float,
        Field(ge=MIN_BLEND_WEIGHT, le=MAX_BLEND_WEIGHT, description="Its share of the mix, beside the others'"),
        Field(examples=[2.0]),
        NullIsDefault(),
    ] = 1.0


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

    normalize: Annotated[
        bool | None,
        Field(
            description="Reading as a whole: true starts from all stages, false turns everything off", examples=[True]
        ),
    ] = None
    unit_normalization: Annotated[
        bool | None, Field(description="Units: 5 kg is said as five kilograms", examples=[True])
    ] = None
    url_normalization: Annotated[bool | None, Field(description="Addresses of the web", examples=[True])] = None
    email_normalization: Annotated[bool | None, Field(description="Addresses of mail", examples=[True])] = None
    phone_normalization: Annotated[
        bool | None, Field(description="Telephone numbers, digit by digit", examples=[True])
    ] = None
    optional_pluralization_normalization: Annotated[
        bool | None, Field(description="Names with a plural in brackets, such as file(s)", examples=[True])
    ] = None
    replace_remaining_symbols: Annotated[
        bool | None, Field(description="Signs that no other stage has read, such as & and @", examples=[True])
    ] = None


# The pattern is for readers of the OpenAPI page. Blank text is refused elsewhere, with a better message.
InputText = Annotated[str, Field(max_length=MAX_TEXT_CHARS, json_schema_extra={"minLength": 1, "pattern": r"\S"})]
Transcript = Annotated[str, Field(json_schema_extra={"maxLength": MAX_TRANSCRIPT_CHARS})]
"""Transcript of a recording. The engine refuses a longer one, with a better message."""
Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
Language = Annotated[str, Field(max_length=MAX_NAME_CHARS), AfterValidator(language_of_code)]
"""A model's language, by its name or by a code of ISO 639 such as en, eng or en-US."""
Speed = Annotated[float, Field(ge=0.25, le=4)]
Seed = Annotated[int, Field(ge=0, le=SEED_MAX)]
VoiceName = Annotated[
    Annotated[str, Field(max_length=MAX_BLEND_CHARS)] | VoiceId | None,
    Field(
        description="A speaker, a stored voice, one of OpenAI's names, or a mix such as `heart(2)+michael(1)`."
        " GET /v1/audio/voices lists them.",
        examples=["alloy", "heart(2)+michael(1)", {"id": "heart"}],
    ),
]
Instructions = Annotated[
    Annotated[str, Field(max_length=MAX_INSTRUCTIONS_CHARS)] | None,
    Field(description="Style of the speech, or the voice to design", examples=["Calm and friendly."]),
]
SpeechSpeed = Annotated[
    Speed, Field(description="Factor of the speaking rate, at the same pitch", examples=[1.0]), NullIsDefault()
]
TextLanguage = Annotated[
    Language | None,
    Field(description="Language of the text, by its name or by an ISO 639-1 code", examples=["en", "english"]),
]
SpeechSeed = Annotated[
    Seed | None, Field(description="Seed of the random numbers: it makes speech repeatable", examples=[42])
]
RefAudio = Annotated[
    Annotated[str, Field(max_length=MAX_REF_AUDIO_CHARS)] | None,
    Field(
        description="A recording of the voice, of 1 to 30 s: a `data:` URL, base64, or an http(s) URL on a host"
        " that the operator allows",
        examples=["data:audio/wav;base64,UklGRiQAAABXQVZF"],
    ),
]
RefText = Annotated[
    Transcript | None,
    Field(description="Transcript of `ref_audio`, from which the model then continues", examples=["Good morning."]),
]
XVectorOnly = Annotated[
    bool | None, Field(description="True takes the speaker embedding of `ref_audio` alone", examples=[False])
]
SpeakerEmbedding = Annotated[
    GivenEmbedding | None,
    Field(description="A speaker embedding, or several with their weights", examples=[[0.013, -0.021, 0.004]]),
]


class SpeechOptions(Fields):
    """Options of speech: OpenAI's fields, then extensions, with vLLM-Omni's names where it has them."""

    model: Annotated[
        Name | None,
        Field(description="A served model, or one of OpenAI's names, which mean the first one", examples=["tts-1"]),
    ] = None
    voice: VoiceName = None
    instructions: Instructions = None
    response_format: Annotated[
        FormatName,
        Field(description="Format of the audio. Each of them streams", examples=["mp3"]),
        NullIsDefault(),
    ] = "mp3"
    speed: SpeechSpeed = 1.0

    task_type: Annotated[
        Literal["CustomVoice", "VoiceDesign", "Base"] | None,
        Field(description="Kind of model that the request is meant for", examples=["CustomVoice"]),
    ] = None
    language: TextLanguage = None
    seed: SpeechSeed = None
    temperature: Annotated[
        float | None,
        Field(ge=0, le=2, description="0, and any value below 0.01: always the most likely code", examples=[0.9]),
    ] = None
    top_p: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        Field(description="Keeps the likeliest codes, of this probability together", examples=[0.95]),
    ] = None
    top_k: Annotated[int | None, Field(ge=-1, le=MAX_TOP_K, description="-1 and 0 keep every code", examples=[50])] = (
        None
    )
    repetition_penalty: Annotated[
        Annotated[float, Field(ge=1, le=2)] | None,
        Field(description="Makes codes that were drawn already less likely; 1 leaves them", examples=[1.05]),
    ] = None
    max_new_tokens: Annotated[
        Annotated[int, Field(ge=1, le=MAX_FRAMES)] | None,
        Field(description="Most codec frames of 80 ms, for each part of the text", examples=[2048]),
    ] = None
    non_streaming_mode: Annotated[
        bool | None,
        Field(
            description="True, the default, gives the model the whole text before it speaks; false, the text while it"
            " speaks, as live text does and as the reference clones voices",
            examples=[False],
        ),
    ] = None
    initial_codec_chunk_frames: Annotated[
        Annotated[int, Field(ge=1, le=MAX_FRAMES)] | None,
        Field(description="Codec frames of the first piece of audio", examples=[1]),
    ] = None
    normalize: Annotated[
        StageChoice | None,
        Field(
            description="Reading of the text: true, false, or a list of stages", examples=[True, ["numbers", "units"]]
        ),
    ] = None
    normalization_options: Annotated[
        NormalizationOptions | None,
        Field(description="Kokoro-FastAPI's switches of reading", examples=[{"unit_normalization": True}]),
    ] = None
    word_timestamps: Annotated[
        bool | None,
        Field(
            description="True gives the times of the text's words, where the answer has a place for them: in events,"
            " in batches, in messages of sockets, and in a header of a whole file. Models have `word_times` or not.",
            examples=[True],
        ),
    ] = None
    timestamp_granularities: Annotated[
        list[Literal["word"]] | None,
        Field(
            max_length=MAX_GRANULARITIES,
            description="OpenAI's field of transcriptions: `word` says the same as `word_timestamps`",
            examples=[["word"]],
        ),
    ] = None
    sample_rate: Annotated[
        Literal[8000, 16000, 24000, 48000] | None,
        Field(description="Sample rate of the audio, in Hz. The default suits the format", examples=[24000]),
    ] = None
    leading_silence: Annotated[
        LeadingSilenceChoice | None,
        Field(
            description="Silence that the voice puts before its first word: `trim` drops all but 20 ms, `keep` nothing."
            " The default is the server's, which is `trim` unless its operator chose otherwise.",
            examples=["trim"],
        ),
    ] = None
    ref_audio: RefAudio = None
    ref_text: RefText = None
    x_vector_only_mode: XVectorOnly = None
    speaker_embedding: SpeakerEmbedding = None
    allow_voice_tags: Annotated[
        bool | None,
        Field(
            description="Tags `[voice:NAME]` in the text give what is behind them to another voice, as in"
            " Kokoro-FastAPI. false makes them text like any other",
            examples=[True],
        ),
    ] = None
    turn_pause_s: Annotated[
        TurnPause | None,
        Field(
            description="Silence between the turns of two voices, in seconds. The default is 0.2; a pause tag there"
            " takes its place",
            examples=[0.2],
        ),
    ] = None

    @property
    def wants_words(self) -> bool:
        """True if the times of words are asked for."""
        return bool(self.word_timestamps or self.timestamp_granularities)

    @property
    def voice_name(self) -> str | None:
        """The name of the voice. An empty one, which clients send for a setting that was left open, is none."""
        return (self.voice.id if isinstance(self.voice, VoiceId) else self.voice) or None


class Segment(Fields):
    """A turn of a dialogue. The fields that it leaves out are the request's.

    A segment that says anything of its voice has nothing of the request's voice.
    """

    VOICE_FIELDS: ClassVar[tuple[str, ...]] = (
        "voice",
        "ref_audio",
        "ref_text",
        "x_vector_only_mode",
        "speaker_embedding",
    )

    text: Annotated[InputText, Field(description="The text of the turn", examples=["Good morning."])]
    voice: VoiceName = None
    instructions: Instructions = None
    speed: SpeechSpeed = 1.0
    language: TextLanguage = None
    seed: SpeechSeed = None
    ref_audio: RefAudio = None
    ref_text: RefText = None
    x_vector_only_mode: XVectorOnly = None
    speaker_embedding: SpeakerEmbedding = None


Segments = Annotated[
    Annotated[list[Segment], Field(fail_fast=True, min_length=1, max_length=MAX_TURNS)] | None,
    Field(
        description="The turns of a dialogue, instead of `input`. All of them are one file",
        examples=[[{"voice": "heart", "text": "Good morning."}, {"voice": "michael", "text": "Hello."}]],
    ),
]


def _without_required_input(schema: JsonDict) -> None:
    """Takes `input` out of the required fields of a schema, because `segments` may stand for it."""
    required = schema.get("required")
    assert isinstance(required, list)
    required.remove("input")
    if not required:
        del schema["required"]


class GivenText(Fields):
    """The text to speak: one, or the turns of several voices."""

    model_config = ConfigDict(json_schema_extra=_without_required_input)

    input: Annotated[
        InputText,
        Field(
            description="The text to speak, required without `segments`. `[voice:NAME]` gives what is behind it to"
            " another voice",
            examples=["Hello, this is Vivavoce.", "Hello. [voice:michael] Good morning."],
        ),
    ]
    segments: Segments = None

    @model_validator(mode="before")
    @classmethod
    def _with_input(cls, given: object) -> object:
        """Segments stand for the input, which is required without them."""
        if isinstance(given, Mapping) and given.get("segments") is not None and given.get("input") is None:
            return {**given, "input": ""}
        return given

    @property
    def written(self) -> str:
        """The text as it is written: the input, or the segments' texts in lines of their own."""
        return self.input if self.segments is None else "\n".join(segment.text for segment in self.segments)


class SpeechRequest(GivenText, SpeechOptions):
    """Body of POST /v1/audio/speech."""

    answer: Annotated[
        Literal["audio", "text"],
        Field(
            alias="return",
            description="With `text`, the answer is the text that would be said; fields of the audio then do nothing",
            examples=["audio"],
        ),
        NullIsDefault(),
    ] = "audio"
    stream_format: Annotated[
        Literal["audio", "sse"],
        Field(description="`sse` sends OpenAI's events instead of the file", examples=["audio"]),
        NullIsDefault(),
    ] = "audio"
    stream: Annotated[
        bool | None,
        Field(description="false sends one body, whose length is known; else audio goes out as it is made"),
        Field(examples=[True]),
    ] = None
