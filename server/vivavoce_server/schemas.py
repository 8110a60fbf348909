"""Bodies on the wire, and `to_request`: the only translation into the engine's terms."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from vivavoce_engine import ModelInfo, Sampling, SpeechEngine, SynthesisRequest
from vivavoce_engine.request import SEED_MAX, draw_seed

from vivavoce_server.audio import AudioOptions
from vivavoce_server.config import ServerConfig
from vivavoce_server.containers import FormatName
from vivavoce_server.errors import invalid
from vivavoce_server.normalize import ALL_STEPS, Step, normalize
from vivavoce_server.speech import Silence, SpeechJob
from vivavoce_server.text import parts_of

TASK_NAMES = {"custom_voice": "CustomVoice", "voice_design": "VoiceDesign", "base": "Base"}


class VoiceId(BaseModel):
    """OpenAI's custom voice object."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str


class WeightedEmbedding(BaseModel):
    """A part of a mixed voice."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    embedding: list[float]
    weight: Annotated[float, Field(gt=0)] = 1.0


# The pattern is there for readers of the OpenAPI page; what is blank gets a better message than it would give.
InputText = Annotated[str, Field(json_schema_extra={"minLength": 1, "pattern": r"\S"})]


class SpeechOptions(BaseModel):
    """How to speak: OpenAI's fields, then the extensions, under vLLM-Omni's names where it has them."""

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
    """POST /v1/audio/speech."""

    input: InputText
    stream_format: Literal["audio", "sse"] = "audio"
    stream: bool | None = None

    def to_job(self, model: str, engine: SpeechEngine, config: ServerConfig) -> SpeechJob:
        """What the engine is to say, and how the listener wants to hear it; in which voice, jobs.py finds out.

        Raises:
            ApiError: a field's value cannot be served; names the field.
        """
        request = self._to_request(engine.info, config)
        max_part_chars = min(config.max_part_chars, engine.info.max_utterance_chars or config.max_part_chars)
        texts = parts_of(request.text, request.language, max_part_chars)
        if len(texts) > 1 and request.seed is None:
            # One seed for all parts, so that they sound like one recording.
            request = replace(request, seed=draw_seed())
        # A pause is as long as its tag says at any speed.
        parts = (replace(request, text=part) if isinstance(part, str) else Silence(part * self.speed) for part in texts)
        audio = AudioOptions(self.response_format, self.speed, self.sample_rate)
        return SpeechJob(model, engine, tuple(parts), audio, seed_is_fixed=self.seed is not None)

    def _to_request(self, info: ModelInfo, config: ServerConfig) -> SynthesisRequest:
        self._check_available()
        if not self.input.strip():
            raise invalid("input", "The input is blank")
        if len(self.input) > config.max_input_chars:
            message = f"The input has {len(self.input)} characters; the most is {config.max_input_chars}"
            raise invalid("input", message, "string_above_max_length")
        steps = ALL_STEPS if self.normalize is True else self.normalize or ()
        defaults = SynthesisRequest(normalize(self.input, steps))
        return replace(
            defaults,
            language=defaults.language if self.language is None else self.language,
            instructions=self.instructions or "",
            sampling=self._sampling(info.sampling),
            seed=self.seed,
            # The reference's wrappers read the whole text before they speak, but for the one that clones.
            streaming_text=info.task == "base" if self.non_streaming_mode is None else not self.non_streaming_mode,
            max_frames=self.max_new_tokens,
            first_chunk_frames=self.initial_codec_chunk_frames or defaults.first_chunk_frames,
        )

    def _check_available(self) -> None:
        if self.word_timestamps:
            raise invalid("word_timestamps", "This server cannot tell when words are spoken yet", "not_available")
        if self.stream_format == "sse" and self.stream is False:
            raise invalid("stream", "Server-sent events always stream")

    def _sampling(self, defaults: Sampling) -> Sampling:
        """The checkpoint's sampling with the request's changes, which concern the talker (code 0), as in vLLM-Omni."""
        names = ("temperature", "top_p", "repetition_penalty")
        changes: dict[str, Any] = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        talker = replace(defaults.talker, **changes)
        if self.top_k is not None:
            talker = replace(talker, top_k=max(self.top_k, 0))  # -1, vLLM's word for "all", is 0 here
        return replace(defaults, talker=talker)
