"""POST /dev/captioned_speech: Kokoro-FastAPI's speech with the times of words, for its clients."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from vivavoce_engine import MAX_BLEND_CHARS

from vivavoce_server.access import CallerDep
from vivavoce_server.deadlines import MaxWaitDep
from vivavoce_server.errors import ApiError, invalid
from vivavoce_server.formats import FormatName
from vivavoce_server.framing import LINES, CaptionedFraming
from vivavoce_server.http import ERROR_RESPONSES, FILE_HEADERS, IF_NONE_MATCH, NOT_MODIFIED, Responses, ServiceDep
from vivavoce_server.jobs import no_word_times, prepare
from vivavoce_server.schemas import (
    MAX_NAME_CHARS,
    Fields,
    InputText,
    Name,
    NormalizationOptions,
    NullIsDefault,
    Seed,
    SpeechRequest,
    Speed,
    TurnPause,
)
from vivavoce_server.streaming import SpeechResponse, SpeechRoute
from vivavoce_server.text_parts import language_of_code

router = APIRouter(prefix="/dev", route_class=SpeechRoute, tags=["Speech"])

KOKORO_LANGUAGES = {"a": "en", "b": "en", "e": "es", "f": "fr", "i": "it", "j": "ja", "p": "pt", "z": "zh"}
"""Kokoro's letter for a language → ISO 639-1."""


class CaptionedSpeech(Fields):
    """Kokoro-FastAPI's fields. `seed` and `turn_pause_s` are extensions."""

    input: Annotated[InputText, Field(description="The text to speak", examples=["Hello, this is Vivavoce."])]
    model: Annotated[
        Name | None,
        Field(description="A served model, or one of OpenAI's names; `kokoro` is the first one", examples=["kokoro"]),
    ] = None
    voice: Annotated[
        Annotated[str, Field(max_length=MAX_BLEND_CHARS)] | None,
        Field(description="A voice, as for /v1/audio/speech", examples=["heart"]),
    ] = None
    response_format: Annotated[
        FormatName, Field(description="Format of the audio", examples=["mp3"]), NullIsDefault()
    ] = "mp3"
    speed: Annotated[
        Speed, Field(description="Factor of the speaking rate, at the same pitch", examples=[1.0]), NullIsDefault()
    ] = 1.0
    stream: Annotated[
        bool,
        Field(description="True sends an object a line while the speech is made, false one object", examples=[True]),
        NullIsDefault(),
    ] = True
    return_timestamps: Annotated[
        bool, Field(description="False leaves the times out", examples=[True]), NullIsDefault()
    ] = True
    return_download_link: Annotated[
        bool | None, Field(description="True is refused: nothing is kept for a download", examples=[False])
    ] = None
    lang_code: Annotated[
        Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None,
        Field(description="Language, by Kokoro's letter or by an ISO 639-1 code", examples=["a", "en"]),
    ] = None
    volume_multiplier: Annotated[float | None, Field(description="1; another volume is refused", examples=[1.0])] = None
    normalization_options: Annotated[
        NormalizationOptions | None, Field(description="Switches of reading", examples=[{"unit_normalization": True}])
    ] = None
    allow_voice_tags: Annotated[
        bool | None, Field(description="false makes tags `[voice:NAME]` text like any other", examples=[True])
    ] = None
    turn_pause_s: Annotated[
        TurnPause | None,
        Field(description="Silence between the turns of two voices, in seconds; the default is 0.2", examples=[0.2]),
    ] = None
    seed: Annotated[
        Seed | None, Field(description="Seed of the random numbers: it makes speech repeatable", examples=[42])
    ] = None

    def request(self) -> SpeechRequest:
        """The request to /v1/audio/speech that says the same, without its words.

        Raises:
            ApiError: 400, a field's value cannot be served.
        """
        if self.return_download_link:
            raise invalid("return_download_link", "Nothing is kept for a download here", "not_available")
        if self.volume_multiplier not in (None, 1):
            raise invalid("volume_multiplier", "The volume cannot be changed here; 1 leaves it", "not_available")
        language = self.lang_code
        same = (
            "input",
            "voice",
            "response_format",
            "speed",
            "stream",
            "normalization_options",
            "seed",
            "allow_voice_tags",
            "turn_pause_s",
        )
        return SpeechRequest.model_construct(
            **{name: getattr(self, name) for name in same},
            model=None if self.model == "kokoro" else self.model,
            language=language and language_of_code(KOKORO_LANGUAGES.get(language, language)),
        )


class CaptionedWord(BaseModel):
    """A word, as it was written."""

    word: str = Field(description="The word, as it was written", examples=["Hello"])
    start_time: float = Field(description="Its beginning, in seconds of the whole file", examples=[0.11])
    end_time: float = Field(description="Its end, in seconds of the whole file", examples=[0.42])


class CaptionedAudio(BaseModel):
    """A piece of the file, with the words that begin in it. Words whose times are unknown are left out."""

    audio: str = Field(description="The next bytes of the file, in base64", examples=["UklGRiQAAABXQVZF"])
    audio_format: str = Field(description="Media type of the file", examples=["audio/mpeg"])
    timestamps: list[CaptionedWord] = Field(description="The words that begin in it")


SPOKEN: dict[str, Any] = {
    "description": "One object, or, streamed, an object a line",
    "headers": FILE_HEADERS,
    "model": CaptionedAudio,
    "content": {LINES: {"schema": {"type": "string", "description": "Such objects, one a line"}}},
}
RESPONSES: Responses = {200: SPOKEN, **NOT_MODIFIED, **ERROR_RESPONSES}


@router.post(
    "/captioned_speech",
    summary="Speak a text with captions",
    status_code=200,
    response_class=SpeechResponse,
    responses=RESPONSES,
    openapi_extra=IF_NONE_MATCH,
)
async def captioned_speech(
    body: CaptionedSpeech, service: ServiceDep, caller: CallerDep, max_wait_s: MaxWaitDep
) -> SpeechResponse:
    """Speaks `input` as Kokoro-FastAPI does: the file in base64, and the times of its words beside it.

    The last line has no audio if words became certain after it. Times are seconds of the whole file.
    """
    try:
        job = prepare(body.request(), service, max_wait_s)
    except ApiError as error:
        if error.detail.param == "language":
            error.detail.param = "lang_code"
        raise
    if body.return_timestamps:
        if not job.engine.info.word_times:
            raise no_word_times("return_timestamps", job.model)
        job = job.with_word_times()
    framing = CaptionedFraming(job.audio.media_type, whole=not body.stream)
    return SpeechResponse(service, caller, job, framing, whole=not body.stream)
