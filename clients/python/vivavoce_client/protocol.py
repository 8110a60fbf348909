"""What goes over the wire: request bodies, answers, errors. No I/O here.

VivavoceError
├── ConnectionFailed   no server answers there
├── ApiError           the server refused, and says why
└── StreamBroken       the speech ended before its end
"""

import json
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

SAMPLE_RATE = 24000
SAMPLE_BYTES = 2
PCM = "pcm"


class SpeechOptions(TypedDict, total=False):
    """Optional fields of POST /v1/audio/speech; what is absent takes the server's default."""

    model: str
    instructions: str
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
    speed: float
    language: str
    seed: int
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    max_new_tokens: int
    sample_rate: int
    non_streaming_mode: bool
    initial_codec_chunk_frames: int


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice that the server offers. `aliases` are OpenAI's names for it."""

    id: str
    name: str
    model: str
    aliases: tuple[str, ...]


class VivavoceError(Exception):
    """Base of all that the client raises on purpose."""


class ConnectionFailed(VivavoceError):
    """No server answers at the URL."""


class StreamBroken(VivavoceError):
    """The connection ended in the middle of the speech."""


class ApiError(VivavoceError):
    """The server refused the request; `param` names the field at fault, if one is."""

    def __init__(
        self, status: int, message: str, param: str | None, code: str | None, retry_after_s: float | None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s


def speech_body(text: str, voice: str, options: SpeechOptions) -> dict[str, Any]:
    """The request's JSON. PCM unless asked otherwise: a program wants samples."""
    return {"response_format": PCM, **options, "input": text, "voice": voice}


def parse_error(status: int, body: bytes, retry_after: str | None) -> ApiError:
    """The error of a refused request; a body that is not Vivavoce's (a proxy's, say) becomes the message."""
    retry_after_s = float(retry_after) if retry_after is not None and retry_after.isdigit() else None
    try:
        error = json.loads(body)["error"]
        return ApiError(status, error["message"], error["param"], error["code"], retry_after_s)
    except (ValueError, KeyError, TypeError):
        text = body.decode(errors="replace").strip()
        return ApiError(status, text or f"HTTP status {status}", None, None, retry_after_s)


def parse_voices(body: bytes) -> list[Voice]:
    return [
        Voice(voice["id"], voice["name"], voice["model"], tuple(voice["aliases"]))
        for voice in json.loads(body)["voices"]
    ]
