"""The wire protocol: request bodies, answers, errors. No I/O here.

VivavoceError
├── ConnectionFailed   no server answers there
├── ApiError           the server refused, with a reason
└── StreamBroken       the speech ended before its end
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Required, TypedDict

SAMPLE_RATE = 24000
SAMPLE_BYTES = 2
PCM = "pcm"


FormFiles = dict[str, tuple[str | None, bytes]]
"""Field → file name and content. A plain field has no file name."""


class WeightedEmbedding(TypedDict, total=False):
    """A part of a mixed voice. The default weight is 1."""

    embedding: Required[Sequence[float]]
    weight: float


class Segment(TypedDict, total=False):
    """A turn of a dialogue. Fields that are absent are those of the request."""

    text: Required[str]
    voice: str
    seed: int
    instructions: str
    speed: float
    language: str
    ref_audio: str
    ref_text: str
    x_vector_only_mode: bool
    speaker_embedding: Sequence[float] | Sequence[WeightedEmbedding]


class SpeechOptions(TypedDict, total=False):
    """Optional fields of POST /v1/audio/speech. Absent fields take the server's defaults."""

    model: str
    instructions: str
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm", "g711_ulaw", "g711_alaw"]
    speed: float
    language: str
    normalize: bool | Sequence[str]
    seed: int
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    max_new_tokens: int
    sample_rate: int
    leading_silence: Literal["trim", "keep"]
    non_streaming_mode: bool
    initial_codec_chunk_frames: int
    task_type: Literal["CustomVoice", "VoiceDesign", "Base"]
    ref_audio: str
    ref_text: str
    x_vector_only_mode: bool
    speaker_embedding: Sequence[float] | Sequence[WeightedEmbedding]
    word_timestamps: bool
    allow_voice_tags: bool
    turn_pause_s: float


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice that the server offers.

    `aliases` are OpenAI's names for it. `model` is the first model that has it, or None if none can speak with it.
    `created_at`, in seconds since 1970, is set for stored voices only. `sex`, `accent`, `language` (the speaker's
    own) and `description` are None where nobody has stated them. `languages` are all that it speaks, its own first.
    """

    id: str
    name: str
    model: str | None
    aliases: tuple[str, ...]
    created_at: int | None = None
    sex: Literal["female", "male"] | None = None
    accent: str | None = None
    language: str | None = None
    languages: tuple[str, ...] = ()
    description: str | None = None


@dataclass(frozen=True, slots=True)
class StoredVoice:
    """A voice that has just been stored.

    `warnings` tell what may go wrong with it, such as a transcript that does not fit its recording.
    """

    id: str
    name: str
    created_at: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpokenText:
    """Text that will be said. `parts` are texts, and pauses in seconds, in their order.

    `warnings` tell what cannot be said and is left out. `answer` is the server's JSON with all its fields.
    """

    parts: tuple[str | float, ...]
    warnings: tuple[str, ...]
    answer: dict[str, Any]

    def __str__(self) -> str:
        """The text with its pauses as tags: It stops. [pause:0.5s] It goes on."""
        return " ".join(part.strip() if isinstance(part, str) else f"[pause:{part:g}s]" for part in self.parts)


@dataclass(frozen=True, slots=True)
class SaidPart:
    """A stretch of an utterance's text all of whose audio was sent. `end_s` is its end in the audio, in seconds."""

    text: str
    end_s: float


class VivavoceError(Exception):
    """Base of all errors that the client raises on purpose."""


class ConnectionFailed(VivavoceError):
    """No server answers at the URL."""


class StreamBroken(VivavoceError):
    """The connection ended in the middle of the speech."""


class ApiError(VivavoceError):
    """The server refused the request. `param` names the field at fault, if there is one."""

    def __init__(
        self, status: int, message: str, param: str | None, code: str | None, retry_after_s: float | None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s


def key_headers(api_key: str | None) -> dict[str, str]:
    """The header that carries an API key. Without a key there is none; blanks around a key are no part of it.

    Raises:
        VivavoceError: it has characters that no header carries.
    """
    key = (api_key or "").strip()
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()):
        raise VivavoceError("the API key has characters other than printable ASCII")
    return {"Authorization": f"Bearer {key}"}


def speech_body(text: str | Sequence[Segment], voice: str | None, options: SpeechOptions) -> dict[str, Any]:
    """JSON of a request. The default format is PCM, because programs want samples.

    The times of words come as events. The other answers are the file itself.
    """
    body: dict[str, Any] = {"response_format": PCM, **options}
    body |= {"input": text} if isinstance(text, str) else {"segments": list(text)}
    body |= {} if voice is None else {"voice": voice}
    return body | ({"stream_format": "sse"} if options.get("word_timestamps") else {})


def text_body(text: str, options: SpeechOptions) -> dict[str, Any]:
    """JSON of a request for the text that would be said."""
    return {**options, "input": text, "return": "text"}


def live_options(voice: str, options: SpeechOptions) -> dict[str, Any]:
    """Configuration of a live session."""
    return {"response_format": PCM, **options, "voice": voice}


def parse_error(status: int, body: bytes, retry_after: str | None) -> ApiError:
    """Reads the error of a refused request. A body that is not Vivavoce's, such as a proxy's, becomes the message."""
    retry_after_s = float(retry_after) if retry_after is not None and retry_after.isdigit() else None
    try:
        error = json.loads(body)["error"]
        return ApiError(status, error["message"], error["param"], error["code"], retry_after_s)
    except (ValueError, KeyError, TypeError):
        text = body.decode(errors="replace").strip()
        return ApiError(status, text or f"HTTP status {status}", None, None, retry_after_s)


def parse_spoken_text(body: bytes) -> SpokenText:
    """Reads the answer to `text_body`. Another kind of server answers with audio, which raises VivavoceError."""
    try:
        answer = json.loads(body)
        parts = tuple(part["text"] if "text" in part else float(part["pause_s"]) for part in answer["parts"])
        return SpokenText(parts, tuple(answer["warnings"]), answer)
    except (ValueError, KeyError, TypeError) as error:
        raise VivavoceError('the server\'s answer is no text: it does not know `"return": "text"`') from error


STATUS_OF_CODE = {
    "invalid_api_key": 401,
    "model_not_found": 404,
    "message_too_large": 413,
    "queue_full": 429,
    "rate_limit_exceeded": 429,
    "not_serving": 503,
}
"""Error code → the status that HTTP would have, because errors of a WebSocket have none."""


def parse_live_error(message: dict[str, Any]) -> ApiError:
    """Reads the error in a message of a live session."""
    error = message["error"]
    default = 500 if error["type"] == "server_error" else 400
    return ApiError(STATUS_OF_CODE.get(error["code"], default), error["message"], error["param"], error["code"], None)


def said_by(parts: Sequence[SaidPart], played_s: float) -> str:
    """Text of the parts that have been heard when `played_s` seconds of an utterance have been played."""
    # The server rounds to milliseconds.
    return "".join(part.text for part in parts if part.end_s <= played_s + 0.001)


def parse_voices(body: bytes) -> list[Voice]:
    return [
        Voice(
            voice["id"],
            voice["name"],
            voice["model"],
            tuple(voice["aliases"]),
            voice.get("created_at"),
            voice.get("sex"),
            voice.get("accent"),
            voice.get("language"),
            tuple(voice.get("languages", ())),
            voice.get("description"),
        )
        for voice in json.loads(body)["voices"]
    ]


@dataclass(frozen=True, slots=True)
class NewVoice:
    """A voice to store.

    Its source is one of: the bytes of an audio file, with or without its transcript; a speaker embedding; a mix of the
    server's voices, such as `a(2)+b(1)`. `consent` is the speaker's permission, in words.
    """

    name: str
    consent: str
    audio: bytes | None = None
    ref_text: str | None = None
    embedding: Sequence[float] | None = None
    mix: str | None = None
    model: str | None = None

    def fields(self) -> dict[str, str]:
        """Fields of the form, without the recording."""
        given = {
            "name": self.name,
            "consent": self.consent,
            "ref_text": self.ref_text,
            "speaker_embedding": None if self.embedding is None else json.dumps(list(self.embedding)),
            "voice": self.mix,
            "model": self.model,
        }
        return {name: value for name, value in given.items() if value is not None}

    def files(self) -> FormFiles:
        """The whole form, for multipart. It is multipart even without a recording."""
        parts: FormFiles = {name: (None, value.encode()) for name, value in self.fields().items()}
        return parts if self.audio is None else {**parts, "audio_sample": ("recording", self.audio)}


def parse_stored_voice(body: bytes) -> StoredVoice:
    voice = json.loads(body)
    return StoredVoice(voice["id"], voice["name"], voice["created_at"], tuple(voice.get("warnings", ())))
