"""OpenAI's routes for speech and models."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from vivavoce_text import STAGES

from vivavoce_server import errors
from vivavoce_server.access import ELEVENLABS_HEADER, CallerDep
from vivavoce_server.context import REQUEST_ID_HEADER
from vivavoce_server.deadlines import MaxWaitDep
from vivavoce_server.elevenlabs_options import ElevenLabsModel, elevenlabs_models
from vivavoce_server.errors import invalid
from vivavoce_server.formats import FORMATS
from vivavoce_server.framing import WORDS_ABOUT, WORDS_HEADER, AudioFraming, SseFraming
from vivavoce_server.ignored import IGNORED_ABOUT, IGNORED_HEADER
from vivavoce_server.jobs import prepare
from vivavoce_server.marks import SYNTHETIC_ABOUT, SYNTHETIC_HEADER
from vivavoce_server.reading import WARNINGS_ABOUT, WARNINGS_HEADER, plan_text
from vivavoce_server.schemas import TASK_NAMES, SpeechOptions, SpeechRequest
from vivavoce_server.service import Service, get_service
from vivavoce_server.speaking_rate import RATE_CHARACTERS_HEADER, RATE_WORDS_HEADER
from vivavoce_server.spoken_text import SpokenText, spoken_text
from vivavoce_server.streaming import CACHE_ABOUT, CACHE_HEADER, TAG_ABOUT, SpeechResponse, SpeechRoute
from vivavoce_server.word_times import most_words

router = APIRouter(prefix="/v1", tags=["Models"])
speech_router = APIRouter(prefix="/v1", route_class=SpeechRoute, tags=["Speech"])
ServiceDep = Annotated[Service, Depends(get_service)]
Responses = dict[int | str, dict[str, Any]]
SPEECH_TYPES = (*(audio.media_type for audio in FORMATS.values()), SseFraming.media_type)
ERROR_RESPONSES: Responses = {
    **errors.ANY_ROUTE,
    **errors.responses(
        _404="There is no such model",
        _413="The body is too large",
        _429="The queue is full, the wait too long, or a limit of the key is reached; `Retry-After` says when it helps",
        _500="The speech failed, or the server has a fault",
        _503="The server is starting or stopping; `Retry-After` says when it helps",
        _507="The disk has no room for the answer, which is kept until its speech is complete",
    ),
}
MODEL_NOT_FOUND = errors.responses(_404="There is no such model")


def _fields(about: Mapping[str, str]) -> dict[str, Any]:
    """Header fields with their meanings, for the OpenAPI document."""
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in about.items()}


COMMON_HEADERS = _fields(
    {
        SYNTHETIC_HEADER: SYNTHETIC_ABOUT,
        REQUEST_ID_HEADER: "Name of the request in the log; the client's own, if it sent one",
    }
)
"""Header fields of every answer with speech."""
MAX_WORDS_HEADER_BYTES = 8192
"""Most bytes of WORDS_HEADER. Clients and proxies refuse long headers: nginx has room for 4 or 8 KiB by default."""
WORD_HEADER_BYTES = len('{"word":"","start_ms":1000000,"end_ms":1000000},')
"""Bytes of a word in WORDS_HEADER, besides the word itself."""
READ_HEADERS = {**COMMON_HEADERS, **_fields({WARNINGS_HEADER: WARNINGS_ABOUT, IGNORED_HEADER: IGNORED_ABOUT})}
"""Header fields of an answer for one text, which are known before it is spoken."""
SPEECH_HEADERS = {
    **READ_HEADERS,
    **_fields(
        {
            CACHE_HEADER: CACHE_ABOUT,
            "X-Usage-Input-Tokens": "Tokens of the text, on an answer that is not streamed",
            "X-Usage-Output-Tokens": "Codec frames that were made, on an answer that is not streamed",
            RATE_CHARACTERS_HEADER: "Characters a minute of the speech, on an answer that is not streamed",
            RATE_WORDS_HEADER: "Words a minute of the speech, on an answer that is not streamed",
            WORDS_HEADER: WORDS_ABOUT,
            "X-Finish-Reason": "`length` if max_new_tokens ended the speech, on an answer that is not streamed",
        }
    ),
}
TAG_HEADERS = _fields({"ETag": TAG_ABOUT})
FILE_HEADERS = {**SPEECH_HEADERS, **TAG_HEADERS}
NOT_MODIFIED: Responses = {
    304: {
        "description": "`If-None-Match` has the file's entity tag: the client has this file",
        "headers": {**READ_HEADERS, **TAG_HEADERS},
    }
}
IF_NONE_MATCH: dict[str, Any] = {
    "parameters": [
        {
            "name": "If-None-Match",
            "in": "header",
            "description": "Entity tags of files that the client has; if the answer's is among them, it is a 304",
            "schema": {"type": "string", "examples": ['"46123a68"']},
        }
    ]
}
"""The header that an answer with an entity tag follows, which SpeechResponse reads."""
SPEECH_RESPONSES: Responses = {
    200: {
        "description": "The audio, or the text that would be said",
        "headers": FILE_HEADERS,
        "content": {media_type: {} for media_type in SPEECH_TYPES},
        "model": SpokenText,
    },
    **NOT_MODIFIED,
    **ERROR_RESPONSES,
}


class ReadableTextObject(BaseModel):
    """The text that a model reads, and the `stages` of reading by which it gets such text unless a request says more.

    The stages are those for the model's only language, or for a text whose language is not given.
    """

    reads: str = Field(description="What the model reads: `words`, `prose` or `anything`", examples=["prose"])
    alphabet: str | None = Field(description="The script that it reads; null for any", examples=["Latin"])
    letters: str = Field(
        description="How single letters are said: `names`, `spaced` or `as_written`", examples=["names"]
    )
    stages: list[str] = Field(
        description="Stages of reading, in the order in which they run", examples=[["clean", "numbers", "units"]]
    )


class ModelObject(BaseModel):
    """OpenAI's fields of a model, then the model's capabilities."""

    id: str = Field(description="Name of the model in requests", examples=["vivavoce-small-en"])
    object: Literal["model"] = Field(default="model", description="Kind of the object")
    created: int = Field(description="Start of the server, in seconds since 1970", examples=[1_796_000_000])
    owned_by: str = Field(default="vivavoce", description="Owner of the model", examples=["vivavoce"])
    shutdown_date: str | None = Field(
        default=None, description="Date of the model's end; null, as none is planned", examples=["2027-01-06"]
    )
    task: str = Field(description="Kind of the model: `CustomVoice`, `VoiceDesign` or `Base`", examples=["CustomVoice"])
    languages: list[str] = Field(description="Languages that it speaks", examples=[["english"]])
    takes_instructions: bool = Field(description="True if the model follows `instructions`", examples=[False])
    clones: bool = Field(description="True if the model speaks with the voice of a recording", examples=[False])
    word_times: bool = Field(description="True if the model can tell when words are spoken", examples=[True])
    text: ReadableTextObject = Field(description="The text that it reads")


def model_object(service: Service, name: str) -> ModelObject:
    info = service.engines[name].info
    profile = plan_text(SpeechOptions(), info, service.config).profile
    text = ReadableTextObject(
        reads=info.text.reads,
        alphabet=info.text.alphabet,
        letters=info.text.letters,
        stages=[stage for stage in STAGES if stage in profile.stages],
    )
    return ModelObject(
        id=name,
        created=service.created_s,
        task=TASK_NAMES[info.task],
        languages=list(info.languages),
        takes_instructions=info.takes_instructions,
        clones=info.clones,
        word_times=info.word_times,
        text=text,
    )


class ModelList(BaseModel):
    """OpenAI's list of models."""

    object: Literal["list"] = Field(default="list", description="Kind of the object")
    data: list[ModelObject] = Field(description="The models, the default one first")


class AudioModel(BaseModel):
    """A model, as Open WebUI lists it."""

    id: str = Field(description="Name of the model in requests", examples=["vivavoce-small-en"])
    name: str = Field(description="The same name", examples=["vivavoce-small-en"])


class AudioModelList(BaseModel):
    """The models, as Open WebUI lists them."""

    models: list[AudioModel] = Field(description="The models, the default one first")


@speech_router.post(
    "/audio/speech",
    summary="Speak a text",
    status_code=200,
    response_class=SpeechResponse,
    responses=SPEECH_RESPONSES,
    openapi_extra=IF_NONE_MATCH,
)
async def speak(body: SpeechRequest, service: ServiceDep, caller: CallerDep, max_wait_s: MaxWaitDep) -> Response:
    """Speaks `input`. The audio is sent while it is made, unless `stream` is false.

    With `return` "text", nothing is spoken: the answer is the text that would be said.
    """
    job = prepare(body, service, max_wait_s)
    if body.wants_words:
        _check_place_of_words(body)
    if body.answer == "text":
        with caller.speaking():
            return JSONResponse(spoken_text(await job.read()).model_dump())
    framing = SseFraming(job.audio.mark) if body.stream_format == "sse" else AudioFraming(job.audio.media_type)
    return SpeechResponse(service, caller, job, framing, whole=body.stream is False)


def _check_place_of_words(body: SpeechRequest) -> None:
    """Raises a 400 if the answer has no place for words, or none that is large enough."""
    if body.answer == "text" or body.stream_format == "sse":
        return
    field = "word_timestamps" if body.word_timestamps else "timestamp_granularities"
    others = 'stream_format "sse", /v1/audio/speech/batch or /dev/captioned_speech'
    if body.stream is not False:
        message = f"A stream of audio has no place for words: use {others}, or stream false, which has a header"
        raise invalid(field, message)
    if len(json.dumps(body.written)) + most_words(body.written) * WORD_HEADER_BYTES > MAX_WORDS_HEADER_BYTES:
        message = f"The words of this input may not fit into a header, which has at most {MAX_WORDS_HEADER_BYTES} bytes"
        raise invalid(field, f"{message}: use {others}")


@router.get("/models", summary="List the models")
async def list_models(request: Request, service: ServiceDep) -> ModelList | list[ElevenLabsModel]:
    """Lists the models as OpenAI does; for a client that sends ElevenLabs' header, as ElevenLabs does."""
    if ELEVENLABS_HEADER in request.headers:
        return elevenlabs_models(service)
    return ModelList(data=[model_object(service, name) for name in service.engines])


@router.get("/audio/models", summary="List the models' names")
async def list_audio_models(service: ServiceDep) -> AudioModelList:
    """Lists the models for Open WebUI, which requests this path."""
    return AudioModelList(models=[AudioModel(id=name, name=name) for name in service.engines])


@router.get("/models/{model:path}", summary="Get a model", responses=MODEL_NOT_FOUND)
async def get_model(
    model: Annotated[str, Path(description="A served model, or one of OpenAI's names", examples=["tts-1"])],
    service: ServiceDep,
) -> ModelObject:
    """One model, with what it can do."""
    model_id, _ = service.find_model(model)
    return model_object(service, model_id)
