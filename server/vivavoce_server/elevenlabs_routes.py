"""ElevenLabs' routes for speech, voices and the account, for clients of ElevenLabs that are given this address."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Send

from vivavoce_server.access import Caller, CallerDep
from vivavoce_server.config import MAX_TEXT_CHARS
from vivavoce_server.deadlines import MaxWaitDep
from vivavoce_server.elevenlabs_options import (
    VoiceSettings,
    aliases_of,
    audio_of,
    choose_voice,
    speech_fields,
    validated,
)
from vivavoce_server.errors import ApiError, ErrorBody
from vivavoce_server.formats import FORMATS
from vivavoce_server.framing import AudioFraming, Framing, TimestampsFraming
from vivavoce_server.http import ERROR_RESPONSES, Responses, ServiceDep
from vivavoce_server.jobs import SpeechJob, prepare
from vivavoce_server.marks import SYNTHETIC_ABOUT, SYNTHETIC_HEADER
from vivavoce_server.reading import WARNINGS_ABOUT, WARNINGS_HEADER
from vivavoce_server.schemas import MAX_NAME_CHARS, Name, Seed, SpeechRequest
from vivavoce_server.service import Service
from vivavoce_server.streaming import SpeechResponse, SpeechRoute
from vivavoce_server.text_parts import LANGUAGE_CODES
from vivavoce_server.voice_routes import VoiceObject, list_voices

router = APIRouter(prefix="/v1", tags=["ElevenLabs"])
router_v2 = APIRouter(prefix="/v2", tags=["ElevenLabs"])
speech_router = APIRouter(prefix="/v1/text-to-speech", route_class=SpeechRoute, tags=["ElevenLabs"])
NO_LIMIT = 2**31 - 1
"""Stands for no limit where ElevenLabs' clients want a number."""
MAX_PAGE = 100
PAGE = r"^[0-9]{1,9}$"
"""The form of the tokens of pages: the number of a voice."""
NOT_FOUND: Responses = {404: {"description": "There is no such voice", "model": ErrorBody}}
HEADERS = {
    WARNINGS_HEADER: {"description": WARNINGS_ABOUT, "schema": {"type": "string"}},
    SYNTHETIC_HEADER: {"description": SYNTHETIC_ABOUT, "schema": {"type": "string"}},
}


def _responses(*media_types: str) -> Responses:
    content: dict[str, Any] = {media_type: {} for media_type in media_types}
    return {200: {"description": "The speech", "headers": HEADERS, "content": content}, **ERROR_RESPONSES}


AUDIO_RESPONSES = _responses(*dict.fromkeys(audio.media_type for audio in FORMATS.values()))
TIMESTAMPS_RESPONSES = _responses(TimestampsFraming.media_type)


# ---- speech ---------------------------------------------------------------------------------------------------


class TextToSpeech(BaseModel):
    """A text to speak. All other fields of ElevenLabs are ignored."""

    model_config = ConfigDict(extra="ignore")

    text: Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
    model_id: Name | None = None
    language_code: Name | None = None
    voice_settings: VoiceSettings | None = None
    seed: Seed | None = None
    apply_text_normalization: Name | None = None


@contextmanager
def _naming_text() -> Iterator[None]:
    """Gives the field of the text its name in ElevenLabs' requests, in errors about it."""
    try:
        yield
    except ApiError as error:
        if error.detail.param == "input":
            error.detail.param = "text"
        raise


class TextToSpeechResponse(SpeechResponse):
    """A SpeechResponse for a body of ElevenLabs."""

    async def speak(self, send: Send) -> None:
        with _naming_text():
            await super().speak(send)


class Spoken:
    """A request for speech, as a FastAPI dependency."""

    def __init__(
        self,
        voice_id: str,
        body: TextToSpeech,
        service: ServiceDep,
        caller: CallerDep,
        max_wait_s: MaxWaitDep,
        output_format: Name | None = None,
    ) -> None:
        self._voice_id = voice_id
        self._body = body
        self._service: Service = service
        self._caller: Caller = caller
        self._max_wait_s: float = max_wait_s
        self._output_format = output_format

    async def answer(self, whole: bool, with_times: bool = False) -> TextToSpeechResponse:
        job = await self._job()
        framing: Framing = TimestampsFraming() if with_times else AudioFraming(job.audio.media_type)
        return TextToSpeechResponse(self._service, self._caller, job, framing, whole)

    async def _job(self) -> SpeechJob:
        body = self._body
        voice = await choose_voice(self._voice_id, body.model_id, self._service)
        speed = body.voice_settings.speed if body.voice_settings else None
        audio = audio_of(self._output_format, speed)
        fields = speech_fields(body.model_dump(), voice, speed)
        request = validated(SpeechRequest, {**fields, "input": body.text})
        with _naming_text():
            job = prepare(request, self._service, self._max_wait_s)
        return replace(job.with_audio(audio), warnings=voice.warnings)


SpokenDep = Annotated[Spoken, Depends()]


@speech_router.post("/{voice_id}", status_code=200, response_class=SpeechResponse, responses=AUDIO_RESPONSES)
async def convert(spoken: SpokenDep) -> SpeechResponse:
    """Speaks `text` and sends the whole file. The query's `output_format` is mp3_44100_128 unless given."""
    return await spoken.answer(whole=True)


@speech_router.post("/{voice_id}/stream", status_code=200, response_class=SpeechResponse, responses=AUDIO_RESPONSES)
async def stream(spoken: SpokenDep) -> SpeechResponse:
    """Speaks `text` and sends the file while it is made."""
    return await spoken.answer(whole=False)


@speech_router.post(
    "/{voice_id}/with-timestamps", status_code=200, response_class=SpeechResponse, responses=TIMESTAMPS_RESPONSES
)
async def convert_with_timestamps(spoken: SpokenDep) -> SpeechResponse:
    """Speaks `text` and sends the file as one JSON object. The times in it are null, because they are not known yet."""
    return await spoken.answer(whole=True, with_times=True)


@speech_router.post(
    "/{voice_id}/stream/with-timestamps", status_code=200, response_class=SpeechResponse, responses=TIMESTAMPS_RESPONSES
)
async def stream_with_timestamps(spoken: SpokenDep) -> SpeechResponse:
    """Speaks `text` and sends the file while it is made, a JSON object a line. The times in it are null."""
    return await spoken.answer(whole=False, with_times=True)


# ---- voices ---------------------------------------------------------------------------------------------------


class Voice(BaseModel):
    """ElevenLabs' fields of a voice."""

    voice_id: str
    name: str
    category: Literal["premade", "cloned"]
    labels: dict[str, str] = {}
    description: str | None = None
    created_at_unix: int | None = None
    is_owner: bool = True


class Voices(BaseModel):
    voices: list[Voice]


class VoicesPage(Voices):
    """A page of voices. `next_page_token` asks for the next one."""

    has_more: bool
    total_count: int
    next_page_token: str | None


class Settings(BaseModel):
    """The one setting of a voice that has a meaning here."""

    speed: float = 1.0


async def _all_voices(service: Service) -> list[Voice]:
    """The voices of this server, then the names that the setting `voice_aliases` gives them."""
    voices = {
        voice.id: Voice(
            voice_id=voice.id,
            name=voice.name,
            category="premade" if voice.created_at is None else "cloned",
            labels=_labels(voice),
            description=voice.description,
            created_at_unix=voice.created_at,
        )
        for voice in (await list_voices(service)).voices
    }
    for alias, target in aliases_of(service.config).items():
        if target in voices:
            voices[alias] = voices[target].model_copy(update={"voice_id": alias})
    return list(voices.values())


def _labels(voice: VoiceObject) -> dict[str, str]:
    """Known sound of a voice, by ElevenLabs' names and in its small letters. `language` is ISO 639-1."""
    language = LANGUAGE_CODES.get(voice.language or "")
    labels = {"accent": voice.accent and voice.accent.lower(), "gender": voice.sex, "language": language}
    return {name: value for name, value in labels.items() if value}


async def _voice(voice_id: str, service: Service) -> Voice:
    found = next((voice for voice in await _all_voices(service) if voice.voice_id == voice_id), None)
    if found is None:
        raise ApiError(404, f"There is no voice {voice_id!r}", "voice_id", "voice_not_found")
    return found


@router.get("/voices")
async def get_voices(service: ServiceDep) -> Voices:
    return Voices(voices=await _all_voices(service))


@router_v2.get("/voices")
async def search_voices(
    service: ServiceDep,
    page_size: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 10,
    next_page_token: Annotated[str, Query(pattern=PAGE)] | None = None,
    search: Annotated[str, Query(max_length=MAX_NAME_CHARS)] = "",
) -> VoicesPage:
    """Lists the voices whose name contains `search`, page by page."""
    found = [voice for voice in await _all_voices(service) if search.casefold() in voice.name.casefold()]
    start = int(next_page_token or 0)
    end = start + page_size
    more = end < len(found)
    return VoicesPage(
        voices=found[start:end], has_more=more, total_count=len(found), next_page_token=str(end) if more else None
    )


@router.get("/voices/settings/default")
async def get_default_settings() -> Settings:
    return Settings()


@router.get("/voices/{voice_id}", responses=NOT_FOUND)
async def get_voice(voice_id: str, service: ServiceDep) -> Voice:
    return await _voice(voice_id, service)


@router.get("/voices/{voice_id}/settings", responses=NOT_FOUND)
async def get_settings(voice_id: str, service: ServiceDep) -> Settings:
    await _voice(voice_id, service)
    return Settings()


# ---- the account ----------------------------------------------------------------------------------------------


class Price(BaseModel):
    amount: str = "0"
    currency: Literal["usd"] = "usd"


class Subscription(BaseModel):
    """ElevenLabs' fields of a plan. This server counts no characters and bills nothing."""

    tier: str = "self-hosted"
    character_count: int = 0
    character_limit: int = NO_LIMIT
    max_credit_limit_extension: int = 0
    can_extend_character_limit: bool = False
    allowed_to_extend_character_limit: bool = False
    voice_slots_used: int
    professional_voice_slots_used: int = 0
    professional_voice_slots_used_in_workspace: int = 0
    voice_limit: int
    voice_add_edit_counter: int = 0
    professional_voice_limit: int = 0
    can_extend_voice_limit: bool = False
    can_use_instant_voice_cloning: bool
    can_use_professional_voice_cloning: bool = False
    current_overage: Price = Price()
    status: Literal["active"] = "active"
    open_invoices: list[str] = []
    has_open_invoices: bool = False
    cancels_immediately: bool = False


class User(BaseModel):
    """ElevenLabs' fields of the holder of a key. `user_id` is the key's name on this server."""

    user_id: str
    workspace_id: str = "vivavoce"
    subscription: Subscription
    is_new_user: bool = False
    can_use_delayed_payment_methods: bool = False
    is_onboarding_completed: bool = True
    is_onboarding_checklist_completed: bool = True
    created_at: int
    seat_type: Literal["workspace_member"] = "workspace_member"


@router.get("/user/subscription")
async def get_subscription(service: ServiceDep) -> Subscription:
    stored = [voice for voice in await _all_voices(service) if voice.category == "cloned"]
    return Subscription(
        voice_slots_used=len(stored),
        voice_limit=service.config.max_voices,
        can_use_instant_voice_cloning=any(engine.info.clones for engine in service.engines.values()),
    )


@router.get("/user")
async def get_user(service: ServiceDep, caller: CallerDep) -> User:
    """Tells a client whether its key is known."""
    return User(
        user_id=caller.name or "anybody", subscription=await get_subscription(service), created_at=service.created_s
    )
