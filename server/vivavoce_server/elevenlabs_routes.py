"""ElevenLabs' routes for speech, voices and the account, for clients of ElevenLabs that are given this address."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query
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
    naming_fields,
    speech_fields,
    validated,
)
from vivavoce_server.errors import ApiError, responses
from vivavoce_server.formats import FORMATS
from vivavoce_server.framing import JSON, LINES, AudioFraming, Framing, TimestampsFraming
from vivavoce_server.http import (
    ERROR_RESPONSES,
    FILE_HEADERS,
    IF_NONE_MATCH,
    NOT_MODIFIED,
    SPEECH_HEADERS,
    Responses,
    ServiceDep,
)
from vivavoce_server.jobs import SpeechJob, prepare
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
NOT_FOUND: Responses = responses(_404="There is no such voice")
VoiceId = Annotated[str, Path(description="A voice of this server, or an id of ElevenLabs", examples=["heart"])]
FIELD_NAME = re.compile(r"[a-z0-9_]{1,64}")
MAX_IGNORED = 32
"""Most ignored fields that the header names."""


def _responses(headers: Mapping[str, Any], *media_types: str) -> Responses:
    content: dict[str, Any] = {media_type: {} for media_type in media_types}
    return {200: {"description": "The speech", "headers": headers, "content": content}, **ERROR_RESPONSES}


MEDIA_TYPES = tuple(dict.fromkeys(audio.media_type for audio in FORMATS.values()))
AUDIO_RESPONSES = {**_responses(FILE_HEADERS, *MEDIA_TYPES), **NOT_MODIFIED}
TIMESTAMPS_RESPONSES = {**_responses(FILE_HEADERS, JSON), **NOT_MODIFIED}
LINES_RESPONSES = _responses(SPEECH_HEADERS, LINES)


# ---- speech ---------------------------------------------------------------------------------------------------


def _given(fields: Mapping[str, Any] | None) -> list[str]:
    """Names of the fields that have a value, and that a header can name."""
    return [name for name, value in (fields or {}).items() if value is not None and FIELD_NAME.fullmatch(name)]


class TextToSpeech(BaseModel):
    """A text to speak. All other fields of ElevenLabs are ignored, and a header of the answer names them."""

    model_config = ConfigDict(extra="allow")

    text: Annotated[str, Field(max_length=MAX_TEXT_CHARS, description="The text to speak", examples=["Hello there."])]
    model_id: Name | None = Field(
        default=None,
        description="A served model; names that begin with `eleven_` mean the first one",
        examples=["eleven_flash_v2_5"],
    )
    language_code: Name | None = Field(
        default=None, description="Language of the text, as an ISO 639-1 code", examples=["en"]
    )
    voice_settings: VoiceSettings | None = Field(default=None, description="Settings of the voice")
    seed: Seed | None = Field(
        default=None, description="Seed of the random numbers: it makes speech repeatable", examples=[42]
    )
    apply_text_normalization: Name | None = Field(
        default=None, description="Reading of the text: `auto`, `on` or `off`", examples=["auto"]
    )

    @property
    def ignored(self) -> tuple[str, ...]:
        """The first MAX_IGNORED fields that have a value, but no meaning here."""
        settings = None if self.voice_settings is None else self.voice_settings.model_extra
        names = (*_given(self.model_extra), *(f"voice_settings.{name}" for name in _given(settings)))
        return names[:MAX_IGNORED]


class TextToSpeechResponse(SpeechResponse):
    """A SpeechResponse for a body of ElevenLabs."""

    async def speak(self, send: Send) -> None:
        with naming_fields():
            await super().speak(send)


class Spoken:
    """A request for speech, as a FastAPI dependency."""

    def __init__(
        self,
        voice_id: VoiceId,
        body: TextToSpeech,
        service: ServiceDep,
        caller: CallerDep,
        max_wait_s: MaxWaitDep,
        output_format: Annotated[
            Name | None,
            Query(description="Format, sample rate and bit rate by ElevenLabs' names", examples=["mp3_44100_128"]),
        ] = None,
    ) -> None:
        self._voice_id = voice_id
        self._body = body
        self._service: Service = service
        self._caller: Caller = caller
        self._max_wait_s: float = max_wait_s
        self._output_format = output_format

    async def answer(self, whole: bool, with_times: bool = False) -> TextToSpeechResponse:
        with naming_fields():
            job = await self._job()
        if with_times:
            job = job.with_word_times()
        framing: Framing = TimestampsFraming(whole=whole) if with_times else AudioFraming(job.audio.media_type)
        return TextToSpeechResponse(self._service, self._caller, job, framing, whole)

    async def _job(self) -> SpeechJob:
        body = self._body
        voice = await choose_voice(self._voice_id, body.model_id, self._service)
        speed = body.voice_settings.speed if body.voice_settings else None
        audio = audio_of(self._output_format, speed)
        fields = speech_fields(body.model_dump(), voice, speed)
        request = validated(SpeechRequest, {**fields, "input": body.text})
        job = prepare(request, self._service, self._max_wait_s)
        ignored = (*body.ignored, *(("voice_id",) if voice.warnings else ()), *job.ignored)
        return replace(job.with_audio(audio), warnings=job.warnings + voice.warnings, ignored=ignored)


SpokenDep = Annotated[Spoken, Depends()]


@speech_router.post(
    "/{voice_id}",
    summary="Speak a text into a file",
    status_code=200,
    response_class=SpeechResponse,
    responses=AUDIO_RESPONSES,
    openapi_extra=IF_NONE_MATCH,
)
async def convert(spoken: SpokenDep) -> SpeechResponse:
    """Speaks `text` and sends the whole file. The query's `output_format` is mp3_44100_128 unless given."""
    return await spoken.answer(whole=True)


@speech_router.post(
    "/{voice_id}/stream",
    summary="Speak a text as a stream",
    status_code=200,
    response_class=SpeechResponse,
    responses=AUDIO_RESPONSES,
    openapi_extra=IF_NONE_MATCH,
)
async def stream(spoken: SpokenDep) -> SpeechResponse:
    """Speaks `text` and sends the file while it is made."""
    return await spoken.answer(whole=False)


@speech_router.post(
    "/{voice_id}/with-timestamps",
    summary="Speak a text into an object",
    status_code=200,
    response_class=SpeechResponse,
    responses=TIMESTAMPS_RESPONSES,
    openapi_extra=IF_NONE_MATCH,
)
async def convert_with_timestamps(spoken: SpokenDep) -> SpeechResponse:
    """Speaks `text` and sends the file as one JSON object, with the times of its characters.

    Each character of a word has an equal share of the word's time, and characters between words share the time between.
    `alignment` has the text as it is written, `normalized_alignment` the words that are said. Both are null for a model
    that has no `word_times`.
    """
    return await spoken.answer(whole=True, with_times=True)


@speech_router.post(
    "/{voice_id}/stream/with-timestamps",
    summary="Speak a text as a stream of objects",
    status_code=200,
    response_class=SpeechResponse,
    responses=LINES_RESPONSES,
)
async def stream_with_timestamps(spoken: SpokenDep) -> SpeechResponse:
    """Speaks `text` and sends the file while it is made, a JSON object a line, with the times of characters.

    The times are seconds of the whole file. A character comes with the audio in which it is said, or later. The last
    object has no audio, but the characters behind the last word.
    """
    return await spoken.answer(whole=False, with_times=True)


# ---- voices ---------------------------------------------------------------------------------------------------


class Voice(BaseModel):
    """ElevenLabs' fields of a voice."""

    voice_id: str = Field(description="Name of the voice in requests", examples=["heart"])
    name: str = Field(description="Name of the voice", examples=["heart"])
    category: Literal["premade", "cloned"] = Field(
        description="`premade` for a speaker, `cloned` for a stored voice", examples=["premade"]
    )
    labels: dict[str, str] = Field(
        default={},
        description="Accent, gender and language, where they are known",
        examples=[{"accent": "american", "gender": "female"}],
    )
    description: str | None = Field(
        default=None, description="Sound of the voice, if stated", examples=["Warm and clear."]
    )
    created_at_unix: int | None = Field(
        default=None, description="Time of storing, in seconds since 1970; null for a speaker", examples=[1_796_000_000]
    )
    is_owner: bool = Field(default=True, description="True", examples=[True])


class Voices(BaseModel):
    """All voices."""

    voices: list[Voice] = Field(description="Speakers, stored voices, and names of the setting `voice_aliases`")


class VoicesPage(Voices):
    """A page of voices. `next_page_token` asks for the next one."""

    has_more: bool = Field(description="True if another page follows", examples=[False])
    total_count: int = Field(description="Number of voices on all pages", examples=[6])
    next_page_token: str | None = Field(description="Token of the next page; null on the last one", examples=["10"])


class Settings(BaseModel):
    """The one setting of a voice that has a meaning here."""

    speed: float = Field(default=1.0, description="Factor of the speaking rate", examples=[1.0])


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


@router.get("/voices", summary="List the voices")
async def get_voices(service: ServiceDep) -> Voices:
    """All voices on one page."""
    return Voices(voices=await _all_voices(service))


@router_v2.get("/voices", summary="Search the voices")
async def search_voices(
    service: ServiceDep,
    page_size: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Voices on a page", examples=[10])] = 10,
    next_page_token: Annotated[
        str | None, Query(pattern=PAGE, description="The token that the page before gave", examples=["10"])
    ] = None,
    search: Annotated[
        str, Query(max_length=MAX_NAME_CHARS, description="A piece of the name, in any letter case", examples=["hea"])
    ] = "",
) -> VoicesPage:
    """Lists the voices whose name contains `search`, page by page."""
    found = [voice for voice in await _all_voices(service) if search.casefold() in voice.name.casefold()]
    start = int(next_page_token or 0)
    end = start + page_size
    more = end < len(found)
    return VoicesPage(
        voices=found[start:end], has_more=more, total_count=len(found), next_page_token=str(end) if more else None
    )


@router.get("/voices/settings/default", summary="Get the default settings of voices")
async def get_default_settings() -> Settings:
    """The settings of a voice that nobody has set."""
    return Settings()


@router.get("/voices/{voice_id}", summary="Get a voice", responses=NOT_FOUND)
async def get_voice(voice_id: VoiceId, service: ServiceDep) -> Voice:
    """One voice."""
    return await _voice(voice_id, service)


@router.get("/voices/{voice_id}/settings", summary="Get the settings of a voice", responses=NOT_FOUND)
async def get_settings(voice_id: VoiceId, service: ServiceDep) -> Settings:
    """The settings of one voice, which are the default ones."""
    await _voice(voice_id, service)
    return Settings()


# ---- the account ----------------------------------------------------------------------------------------------


class Price(BaseModel):
    """A price, which is always 0."""

    amount: str = Field(default="0", description="Amount", examples=["0"])
    currency: Literal["usd"] = Field(default="usd", description="Currency")


class Subscription(BaseModel):
    """ElevenLabs' fields of a plan. This server counts no characters and bills nothing."""

    tier: str = Field(default="self-hosted", description="Name of the plan", examples=["self-hosted"])
    character_count: int = Field(default=0, description="Characters that were used: none are counted", examples=[0])
    character_limit: int = Field(
        default=NO_LIMIT, description="A number that stands for no limit", examples=[2_147_483_647]
    )
    max_credit_limit_extension: int = Field(default=0, description="No extension", examples=[0])
    can_extend_character_limit: bool = Field(default=False, description="False: there is no limit", examples=[False])
    allowed_to_extend_character_limit: bool = Field(
        default=False, description="False: there is no limit", examples=[False]
    )
    voice_slots_used: int = Field(description="Number of stored voices", examples=[3])
    professional_voice_slots_used: int = Field(default=0, description="No such voices", examples=[0])
    professional_voice_slots_used_in_workspace: int = Field(default=0, description="No such voices", examples=[0])
    voice_limit: int = Field(description="Most stored voices", examples=[1000])
    voice_add_edit_counter: int = Field(default=0, description="Changes are not counted", examples=[0])
    professional_voice_limit: int = Field(default=0, description="No such voices", examples=[0])
    can_extend_voice_limit: bool = Field(
        default=False, description="False: the operator sets the limit", examples=[False]
    )
    can_use_instant_voice_cloning: bool = Field(description="True if a model here clones", examples=[False])
    can_use_professional_voice_cloning: bool = Field(default=False, description="False", examples=[False])
    current_overage: Price = Field(default=Price(), description="Nothing is billed")
    status: Literal["active"] = Field(default="active", description="State of the plan")
    open_invoices: list[str] = Field(default=[], description="No invoices", examples=[[]])
    has_open_invoices: bool = Field(default=False, description="False: nothing is billed", examples=[False])
    cancels_immediately: bool = Field(default=False, description="False", examples=[False])


class User(BaseModel):
    """ElevenLabs' fields of the holder of a key. `user_id` is the key's name on this server."""

    user_id: str = Field(description="Name of the key on this server; `anybody` without keys", examples=["alice"])
    workspace_id: str = Field(default="vivavoce", description="Name of the workspace", examples=["vivavoce"])
    subscription: Subscription = Field(description="The plan")
    is_new_user: bool = Field(default=False, description="False", examples=[False])
    can_use_delayed_payment_methods: bool = Field(
        default=False, description="False: nothing is billed", examples=[False]
    )
    is_onboarding_completed: bool = Field(default=True, description="True", examples=[True])
    is_onboarding_checklist_completed: bool = Field(default=True, description="True", examples=[True])
    created_at: int = Field(description="Start of the server, in seconds since 1970", examples=[1_796_000_000])
    seat_type: Literal["workspace_member"] = Field(default="workspace_member", description="Kind of the seat")


@router.get("/user/subscription", summary="Get the plan")
async def get_subscription(service: ServiceDep) -> Subscription:
    """Limits and use of the account, as ElevenLabs tells them."""
    stored = [voice for voice in await _all_voices(service) if voice.category == "cloned"]
    return Subscription(
        voice_slots_used=len(stored),
        voice_limit=service.config.max_voices,
        can_use_instant_voice_cloning=any(engine.info.clones for engine in service.engines.values()),
    )


@router.get("/user", summary="Get the holder of the key")
async def get_user(service: ServiceDep, caller: CallerDep) -> User:
    """Tells a client whether its key is known."""
    return User(
        user_id=caller.name or "anybody", subscription=await get_subscription(service), created_at=service.created_s
    )
