"""Bodies on the wire, and `to_request`: the only translation into the engine's terms."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from vivavoce_engine import ModelInfo, Sampling, SynthesisRequest

from vivavoce_server.audio import AudioOptions
from vivavoce_server.config import ServerConfig
from vivavoce_server.containers import FormatName
from vivavoce_server.errors import invalid
from vivavoce_server.voices import resolve_voice

MAX_SEED = 2**63 - 1
TASK_NAMES = {"custom_voice": "CustomVoice", "voice_design": "VoiceDesign", "base": "Base"}
CLONING_FIELDS = ("ref_audio", "ref_text", "x_vector_only_mode", "speaker_embedding")


class VoiceId(BaseModel):
    """OpenAI's custom voice object."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str


class SpeechRequest(BaseModel):
    """POST /v1/audio/speech: OpenAI's fields, then the extensions under vLLM-Omni's names."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str | None = None
    input: str
    voice: str | VoiceId | None = None
    instructions: str | None = None
    response_format: FormatName = "mp3"
    speed: Annotated[float, Field(ge=0.25, le=4)] = 1.0
    stream_format: Literal["audio", "sse"] = "audio"
    stream: bool | None = None

    task_type: Literal["CustomVoice", "VoiceDesign", "Base"] | None = None
    language: str | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None
    non_streaming_mode: bool | None = None
    initial_codec_chunk_frames: Annotated[int, Field(ge=1)] | None = None
    sample_rate: Literal[8000, 16000, 24000, 48000] | None = None
    ref_audio: str | None = None
    ref_text: str | None = None
    x_vector_only_mode: bool | None = None
    speaker_embedding: list[float] | None = None

    def to_request(self, info: ModelInfo, config: ServerConfig) -> SynthesisRequest:
        """What to ask of the engine that serves `info`.

        Raises:
            ApiError: a field's value cannot be served; names the field.
        """
        self._check_available(info)
        if not self.input.strip():
            raise invalid("input", "The input is blank")
        if len(self.input) > config.max_input_chars:
            message = f"The input has {len(self.input)} characters; the most is {config.max_input_chars}"
            raise invalid("input", message, "string_above_max_length")
        defaults = SynthesisRequest(self.input)
        return replace(
            defaults,
            speaker=resolve_voice(info, self.voice.id if isinstance(self.voice, VoiceId) else self.voice),
            language=defaults.language if self.language is None else self.language,
            instructions=self.instructions or "",
            sampling=self._sampling(info.sampling),
            seed=self.seed,
            # The reference's wrapper for preset voices reads the whole text before it speaks.
            streaming_text=self.non_streaming_mode is False,
            max_frames=self.max_new_tokens,
            first_chunk_frames=self.initial_codec_chunk_frames or defaults.first_chunk_frames,
        )

    def audio_options(self) -> AudioOptions:
        """How the listener wants the audio."""
        return AudioOptions(self.response_format, self.speed, self.sample_rate)

    def _check_available(self, info: ModelInfo) -> None:
        if self.task_type is not None and self.task_type != TASK_NAMES[info.task]:
            raise invalid("task_type", f"This model does {TASK_NAMES[info.task]}, not {self.task_type}")
        for name in CLONING_FIELDS:
            if getattr(self, name) is not None:
                raise invalid(name, "This server cannot clone voices yet", "not_available")
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
