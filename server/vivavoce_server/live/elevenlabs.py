"""WS /v1/text-to-speech/{voice_id}/stream-input: ElevenLabs' protocol, for agents whose plugins speak it.

The query has model_id (a served one; ElevenLabs' own names mean the first), output_format ("mp3_44100_128"),
language_code, seed and apply_text_normalization ("auto", "on", "off": normalize is null, true, false). Other fields of
ElevenLabs are accepted and have no effect. The key is in the header xi-api-key, in the query's xi-api-key, or in the
first message's xi_api_key. Text is read and paused as in websocket.py, also by <break time="2s" />.

Client → server
    {"text": " ", "voice_settings": {"speed"}, …}   first message; also keeps the connection open
    {"text": "Some words "}                         more text, spoken as it arrives
    {"text": "…", "flush": true}                    last text of the utterance; further text starts another one
    {"text": ""}                                    ends the session

Server → client
    {"audio": base64, "isFinal": null}              the next bytes; in a format with headers, one file per utterance
    {"isFinal": true}                               everything has been sent; the connection closes with 1000
    {"message", "error", "code"}                    an error; if the first message caused it, nothing follows. A text
                                                    of which nothing can be spoken is one; its utterance is silent
"""

import base64
import json
from typing import Any

import numpy as np
from fastapi import APIRouter, WebSocket
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from vivavoce_server.access import bearer_key
from vivavoce_server.audio import AudioOptions
from vivavoce_server.containers import FormatName
from vivavoce_server.errors import ApiError, ErrorDetail, invalid, validation_detail
from vivavoce_server.live.closing import Closing, Code, fault
from vivavoce_server.live.connection import Connection
from vivavoce_server.live.plan import plan_live
from vivavoce_server.live.session import LiveSession, State
from vivavoce_server.live.utterance import UtteranceSummary
from vivavoce_server.reading import normalize_of
from vivavoce_server.schemas import SpeechOptions
from vivavoce_server.service import Service
from vivavoce_server.text_parts import LANGUAGE_CODES

router = APIRouter()

DEFAULT_FORMAT = "mp3_44100_128"
OWN_MODELS = "eleven_"
MAX_MESSAGE_CHARS = 128 * 2**10
ULAW = "ulaw"
FORMATS: dict[str, FormatName] = {"mp3": "mp3", "pcm": "pcm", "opus": "opus", "wav": "wav", ULAW: "pcm"}
RATES = frozenset({8000, 16000, 22050, 24000, 32000, 44100, 48000})
LANGUAGES = {code: name for name, code in LANGUAGE_CODES.items()}
ULAW_BIAS, ULAW_CLIP = 0x84, 32635


class VoiceSettings(BaseModel):
    model_config = ConfigDict(extra="ignore")

    speed: float | None = Field(default=None, ge=0.25, le=4)


class TextMessage(BaseModel):
    model_config = ConfigDict(extra="ignore")

    text: str
    flush: bool | None = None
    voice_settings: VoiceSettings | None = None


class StreamInput:
    """The protocol of this module, as a LiveProtocol."""

    def __init__(self, service: Service, voice_id: str, query: dict[str, str]) -> None:
        self._service = service
        self._voice_id = voice_id
        self._query = query
        self._as_ulaw = False
        self._failed = False

    # ---- reading ----------------------------------------------------------------------------------------------

    def connection_key(self, websocket: WebSocket) -> str | None:
        header = websocket.headers.get("xi-api-key")
        return header or self._query.get("xi-api-key") or self._query.get("api_key") or bearer_key(websocket)

    def first_key(self, message: str) -> str | None:
        try:
            first = from_json(message)
        except ValueError:
            return None
        key = (first.get("xi_api_key") or first.get("xi-api-key")) if isinstance(first, dict) else None
        return key if isinstance(key, str) else None

    async def handle(self, message: str, session: LiveSession) -> None:
        if len(message) > MAX_MESSAGE_CHARS:
            text = f"A message has at most {MAX_MESSAGE_CHARS} characters"
            raise Closing(Code.TOO_LARGE, fault(text, "message_too_large"))
        parsed = parse(message)
        if session.state is State.UNCONFIGURED:
            await self._configure(parsed, session)
        if parsed.text == "":
            session.finish()
            return
        if parsed.text.strip() or session.state is State.OPEN:
            session.append(parsed.text)
        if parsed.flush and session.state is State.OPEN:
            session.end()

    async def _configure(self, first: TextMessage, session: LiveSession) -> None:
        try:
            options, rate = self._options(first)
            plan = await plan_live(options, self._service)
        except ApiError as error:
            # ElevenLabs' clients wait for audio until the connection is closed, even after an error.
            raise Closing(Code.POLICY, error.detail) from error
        session.configure(plan.with_sample_rate(rate))

    def _options(self, first: TextMessage) -> tuple[SpeechOptions, int]:
        model = self._query.get("model_id", "")
        kind, _, rate = self._query.get("output_format", DEFAULT_FORMAT).partition("_")
        rate = rate.partition("_")[0]
        if kind not in FORMATS or not rate.isdigit() or int(rate) not in RATES:
            raise invalid("output_format", f"There is no format {self._query['output_format']!r} here")
        self._as_ulaw = kind == ULAW
        language = self._query.get("language_code")
        if language is not None and language not in LANGUAGES:
            raise invalid("language_code", f"There is no language {language!r}; there are {', '.join(LANGUAGES)}")
        speed = first.voice_settings.speed if first.voice_settings else None
        seed = self._query.get("seed")
        options: dict[str, Any] = {
            "model": None if not model or model.startswith(OWN_MODELS) else model,
            "voice": self._voice_id,
            "response_format": FORMATS[kind],
            "language": None if language is None else LANGUAGES[language],
            "speed": 1.0 if speed is None else speed,
            "normalize": normalize_of(self._query.get("apply_text_normalization")),
            "seed": int(seed) if seed is not None and seed.isdigit() else None,
        }
        try:
            return SpeechOptions.model_validate(options), int(rate)
        except ValidationError as error:
            raise _api_error(error) from None

    # ---- writing ----------------------------------------------------------------------------------------------

    def started(self, index: int, audio: AudioOptions, sample_rate: int) -> None:
        return None

    def audio(self, piece: bytes) -> str:
        encoded = base64.b64encode(to_ulaw(piece) if self._as_ulaw else piece).decode()
        return json.dumps({"audio": encoded, "isFinal": None, "alignment": None, "normalizedAlignment": None})

    def ended(self, summary: UtteranceSummary) -> None:
        return None

    def error(self, detail: ErrorDetail) -> str:
        self._failed = True
        return json.dumps({"message": detail.message, "error": detail.code, "code": Code.POLICY.value})

    def farewell(self) -> str | None:
        # ElevenLabs' clients take the last message for the outcome, so a success must not follow an error.
        return None if self._failed else json.dumps({"isFinal": True})


def parse(message: str) -> TextMessage:
    try:
        return TextMessage.model_validate_json(message)
    except ValidationError as error:
        raise Closing(Code.PROTOCOL, _api_error(error).detail) from None


def _api_error(error: ValidationError) -> ApiError:
    first = error.errors()[0]
    detail = validation_detail(first["loc"], first["type"], first["msg"])
    return ApiError(400, detail.message, detail.param, detail.code or "invalid_value")


def to_ulaw(pcm: bytes) -> bytes:
    """Converts 16-bit samples to G.711 μ-law, the encoding of telephony."""
    samples = np.frombuffer(pcm, "<i2").astype(np.int32)
    magnitude = np.minimum(np.abs(samples), ULAW_CLIP) + ULAW_BIAS
    exponent = np.floor(np.log2(magnitude)).astype(np.int32) - 7
    mantissa = (magnitude >> (exponent + 3)) & 0x0F
    sign = np.where(samples < 0, 0x80, 0)
    coded: bytes = (~(sign | (exponent << 4) | mantissa) & 0xFF).astype(np.uint8).tobytes()
    return coded


@router.websocket("/v1/text-to-speech/{voice_id}/stream-input")
async def stream_input(websocket: WebSocket, voice_id: str) -> None:
    """Serves ElevenLabs' protocol on one connection; see the module."""
    service = websocket.app.state.service
    assert isinstance(service, Service)
    protocol = StreamInput(service, voice_id, dict(websocket.query_params))
    await Connection(websocket, protocol).run()
