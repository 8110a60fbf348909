"""WS /v1/text-to-speech/{voice_id}/stream-input: ElevenLabs' protocol for one text, which its SDK speaks.

The query has model_id, output_format ("mp3_44100_128"), language_code, seed and apply_text_normalization ("auto", "on",
"off": normalize is null, true, false); elevenlabs_options.py tells what they mean. Other fields of ElevenLabs are
accepted and have no effect. With sync_alignment=true, times of characters count from the beginning of the file, and
otherwise from the end of the alignment before. The key is in the header xi-api-key, in the query's xi-api-key, or in
the first message's xi_api_key or authorization. Text is read and paused as in websocket.py, also by
<break time="2s" />.

Client → server
    {"text": " ", "voice_settings": {"speed"}, …}   first message; also keeps the connection open
    {"text": "Some words "}                         more text, spoken as it arrives
    {"text": "…", "flush": true}, {"flush": true}   no more text for now: what is there is spoken to its end
    {"text": ""}, {"close_socket": true}            ends the session

Server → client
    {"audio": base64, "isFinal": null, "alignment", "normalizedAlignment"}
                                                    the next bytes of the session's one file, and the characters that
                                                    became certain with them: {chars, charStartTimesMs,
                                                    charDurationsMs}, or null; see elevenlabs_alignment.py. `audio` is
                                                    "" where only characters are left to tell
    {"isFinal": true}                               everything has been sent; the connection closes with 1000. With
                                                    `warnings`, if something was not spoken as it was asked for
    {"message", "error", "code"}                    an error; the session then ends without isFinal. A text of which
                                                    nothing can be spoken is silent, and a warning
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from fastapi import APIRouter, WebSocket
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vivavoce_server.access import header_key
from vivavoce_server.audio import AudioOptions
from vivavoce_server.elevenlabs_options import (
    VoiceSettings,
    api_error,
    audio_of,
    choose_voice,
    naming_fields,
    speech_fields,
    validated,
)
from vivavoce_server.errors import ApiError, ErrorDetail, invalid
from vivavoce_server.json_bodies import parse_json
from vivavoce_server.live.closing import Closing, Code, fault
from vivavoce_server.live.connection import Connection
from vivavoce_server.live.elevenlabs_alignment import Aligner
from vivavoce_server.live.plan import LivePlan, plan_live
from vivavoce_server.live.session import LiveSession, State
from vivavoce_server.live.utterance import SpokenWords, UtteranceSummary
from vivavoce_server.schemas import SpeechOptions
from vivavoce_server.service import Service

router = APIRouter()

MAX_MESSAGE_CHARS = 128 * 2**10
KEY_FIELDS = ("xi_api_key", "xi-api-key", "authorization")
SILENT_FAULTS = frozenset({"nothing_to_speak"})
"""Codes of errors that are warnings here: agents send signs and emoji, and would try each again."""


class TextMessage(BaseModel):
    """A message of a client. Options without a meaning here are ignored."""

    model_config = ConfigDict(extra="ignore")

    text: str | None = Field(
        default=None, description="More text; empty text ends stream-input, and keeps contexts of the other socket open"
    )
    flush: bool | None = Field(default=None, description="True: no more text for now")
    close_socket: bool | None = Field(default=None, description="True ends the connection")
    voice_settings: VoiceSettings | None = Field(
        default=None, description="Settings of the voice, in the first message"
    )

    def check(self) -> None:
        """Raises a 400 for a message that asks for nothing."""
        if self.text is None and not self.flush and not self.close_socket:
            raise invalid("text", "Missing required field: text", "missing_required_parameter")


@dataclass(frozen=True, slots=True)
class Dialled:
    """The part of a connection's address that says what is wanted."""

    service: Service
    voice_id: str
    query: Mapping[str, str]

    async def plan(self, settings: VoiceSettings | None) -> tuple[LivePlan, tuple[str, ...]]:
        """The plan of a session whose speech is one file, and warnings about what was replaced.

        Raises:
            ApiError: an option cannot be served; names it.
        """
        with naming_fields():
            voice = await choose_voice(self.voice_id, self.query.get("model_id"), self.service)
            speed = settings.speed if settings else None
            audio = audio_of(self.query.get("output_format"), speed)
            options = validated(SpeechOptions, speech_fields(self.query, voice, speed))
            return (await plan_live(options, self.service)).as_one_file(audio), voice.warnings

    def new_aligner(self) -> Aligner:
        """Aligner of one file."""
        return Aligner(self.query.get("sync_alignment", "").lower() == "true")

    def connection_key(self, websocket: WebSocket) -> str | None:
        return header_key(websocket) or self.query.get("xi-api-key") or self.query.get("api_key")


class TextFeed:
    """Text on its way into a session. A flush ends an utterance, and blanks alone open none."""

    def __init__(self, session: LiveSession, spaced: bool = False) -> None:
        """`spaced` puts a blank between messages, each of which is then a sentence."""
        self._session = session
        self._spaced = spaced
        self.has_unflushed = False
        self._ends_blank = False

    def add(self, text: str) -> None:
        if not self.has_unflushed and not text.strip():
            self._session.count_empty()
            return
        if self._spaced and self.has_unflushed and not self._ends_blank and not text[:1].isspace():
            text = " " + text
        self.has_unflushed, self._ends_blank = True, text[-1:].isspace()
        self._session.append(text)

    def flush(self) -> None:
        if self.has_unflushed:
            self.has_unflushed = False
            self._session.end()


class StreamInput:
    """The protocol of this module, as a LiveProtocol."""

    def __init__(self, dialled: Dialled) -> None:
        self._dialled = dialled
        self.connection_key = dialled.connection_key
        self.first_key = first_key
        self._feed: TextFeed | None = None
        self._aligner = dialled.new_aligner()
        self._warnings: tuple[str, ...] = ()
        self._failed = False

    # ---- reading ----------------------------------------------------------------------------------------------

    async def handle(self, message: str, session: LiveSession) -> None:
        parsed = parse(TextMessage, message)
        try:
            parsed.check()
        except ApiError as error:
            raise Closing(Code.PROTOCOL, error.detail) from error
        if session.state is State.UNCONFIGURED:
            await self._configure(parsed, session)
        assert self._feed is not None
        if parsed.text == "" or parsed.close_socket:
            session.finish()
            return
        self._feed.add(parsed.text or "")
        if parsed.flush:
            self._feed.flush()

    async def _configure(self, first: TextMessage, session: LiveSession) -> None:
        try:
            plan, self._warnings = await self._dialled.plan(first.voice_settings)
        except ApiError as error:
            # ElevenLabs' clients wait for audio until the connection is closed, even after an error.
            raise Closing(Code.POLICY, error.detail) from error
        session.configure(plan)
        self._feed = TextFeed(session)

    # ---- writing ----------------------------------------------------------------------------------------------

    def started(self, index: int, audio: AudioOptions, sample_rate: int) -> None:
        self._aligner.begin()

    def audio(self, piece: bytes, words: SpokenWords | None) -> str:
        return audio_message(piece, self._aligner, words)

    def words(self, words: SpokenWords) -> str | None:
        return last_alignment(self._aligner, words)

    def ended(self, summary: UtteranceSummary) -> None:
        self._aligner.end(summary.file_s)
        self._warnings += summary.warnings

    def error(self, detail: ErrorDetail) -> str | None:
        if detail.code in SILENT_FAULTS:
            self._warnings += (detail.message,)
            return None
        self._failed = True
        return error_message(detail)

    def farewell(self) -> str | None:
        # ElevenLabs' clients take the last message for the outcome, so a success must not follow an error.
        return None if self._failed else final_message(self._warnings)


Message = TypeVar("Message", bound=TextMessage)


def parse(kind: type[Message], message: str) -> Message:
    """The message. Raises Closing if it is none of this protocol."""
    if len(message) > MAX_MESSAGE_CHARS:
        text = f"A message has at most {MAX_MESSAGE_CHARS} characters"
        raise Closing(Code.TOO_LARGE, fault(text, "message_too_large"))
    try:
        return kind.model_validate_json(message)
    except ValidationError as error:
        raise Closing(Code.PROTOCOL, api_error(error).detail) from None


def first_key(message: str) -> str | None:
    """The API key in the first message; None without one."""
    try:
        first = parse_json(message.encode())
    except ApiError:
        return None
    given = [first.get(name) for name in KEY_FIELDS] if isinstance(first, dict) else []
    key = next((key for key in given if isinstance(key, str)), None)
    return None if key is None else key.removeprefix("Bearer ").strip()


def audio_message(piece: bytes, aligner: Aligner, words: SpokenWords | None, **fields: object) -> str:
    audio = base64.b64encode(piece).decode()
    return json.dumps({"audio": audio, "isFinal": None, **aligner.take(words), **fields})


def last_alignment(aligner: Aligner, words: SpokenWords, **fields: object) -> str | None:
    """The message of the characters that are left behind all audio. Others are told with their audio."""
    return None if words.whole_s is None else audio_message(b"", aligner, words, **fields)


def final_message(warnings: tuple[str, ...], **fields: object) -> str:
    return json.dumps({"isFinal": True, **fields, **({"warnings": warnings} if warnings else {})})


def error_message(detail: ErrorDetail, **fields: object) -> str:
    return json.dumps({"message": detail.message, "error": detail.code, "code": Code.POLICY.value, **fields})


def dialled(websocket: WebSocket, voice_id: str) -> Dialled:
    service = websocket.app.state.service
    assert isinstance(service, Service)
    return Dialled(service, voice_id, dict(websocket.query_params))


@router.websocket("/v1/text-to-speech/{voice_id}/stream-input")
async def stream_input(websocket: WebSocket, voice_id: str) -> None:
    """Serves ElevenLabs' protocol on one connection; see the module."""
    await Connection(websocket, StreamInput(dialled(websocket, voice_id))).run()
