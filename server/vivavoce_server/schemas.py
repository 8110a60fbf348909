"""Bodies of requests, as pydantic models."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from vivavoce_engine import SEED_MAX

from vivavoce_server.containers import FormatName
from vivavoce_server.normalize import Step

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
    normalize: bool | list[Step] | None = None
    word_timestamps: bool | None = None
    sample_rate: Literal[8000, 16000, 24000, 48000] | None = None
    ref_audio: str | None = None
    ref_text: str | None = None
    x_vector_only_mode: bool | None = None
    speaker_embedding: list[float] | list[WeightedEmbedding] | None = None

    @property
    def voice_name(self) -> str | None:
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice


class SpeechRequest(SpeechOptions):
    """Body of POST /v1/audio/speech."""

    input: InputText
    stream_format: Literal["audio", "sse"] = "audio"
    stream: bool | None = None
