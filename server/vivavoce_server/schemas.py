"""Bodies of requests, as pydantic models."""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from vivavoce_engine import SEED_MAX

from vivavoce_server.config import LeadingSilenceChoice
from vivavoce_server.containers import FormatName
from vivavoce_server.stage_names import StageChoice, StageName

TASK_NAMES = {"custom_voice": "CustomVoice", "voice_design": "VoiceDesign", "base": "Base"}


class VoiceId(BaseModel):
    """OpenAI's custom voice object."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str


class WeightedEmbedding(BaseModel):
    """One part of a mixed voice."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    embedding: list[float]
    weight: Annotated[float, Field(gt=0)] = 1.0


class NormalizationOptions(BaseModel):
    """Kokoro-FastAPI's switches. Each turns stages of reading on or off; an absent one leaves them as they are.

    `normalize` comes first: true starts from all stages, false turns everything off.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

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
InputText = Annotated[str, Field(json_schema_extra={"minLength": 1, "pattern": r"\S"})]


class SpeechOptions(BaseModel):
    """Options of speech: OpenAI's fields, then extensions, with vLLM-Omni's names where it has them."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str | None = None
    voice: str | VoiceId | None = None
    instructions: str | None = None
    response_format: FormatName = "mp3"
    speed: Annotated[float, Field(ge=0.25, le=4)] = 1.0

    task_type: Literal["CustomVoice", "VoiceDesign", "Base"] | None = None
    language: str | None = None
    seed: Annotated[int, Field(ge=0, le=SEED_MAX)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None
    non_streaming_mode: bool | None = None
    initial_codec_chunk_frames: Annotated[int, Field(ge=1)] | None = None
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
    ref_audio: str | None = None
    ref_text: str | None = None
    x_vector_only_mode: bool | None = None
    speaker_embedding: list[float] | list[WeightedEmbedding] | None = None

    @property
    def voice_name(self) -> str | None:
        """The name of the voice. An empty one, which clients send for a setting that was left open, is none."""
        return (self.voice.id if isinstance(self.voice, VoiceId) else self.voice) or None


class SpeechRequest(SpeechOptions):
    """Body of POST /v1/audio/speech."""

    input: InputText
    answer: Annotated[Literal["audio", "text"], Field(alias="return")] = "audio"
    """With "text", the answer is a SpokenText, and fields of the audio have no effect."""
    stream_format: Literal["audio", "sse"] = "audio"
    stream: bool | None = None
