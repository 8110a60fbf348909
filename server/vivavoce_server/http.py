"""OpenAI's routes for speech and models."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from vivavoce_text import STAGES

from vivavoce_server.access import ELEVENLABS_HEADER, CallerDep
from vivavoce_server.deadlines import MaxWaitDep
from vivavoce_server.elevenlabs_options import ElevenLabsModel, elevenlabs_models
from vivavoce_server.errors import ErrorBody
from vivavoce_server.formats import FORMATS
from vivavoce_server.framing import AudioFraming, SseFraming
from vivavoce_server.jobs import prepare
from vivavoce_server.marks import SYNTHETIC_ABOUT, SYNTHETIC_HEADER
from vivavoce_server.reading import WARNINGS_ABOUT, WARNINGS_HEADER, plan_text
from vivavoce_server.schemas import TASK_NAMES, SpeechOptions, SpeechRequest
from vivavoce_server.service import Service, get_service
from vivavoce_server.spoken_text import SpokenText, spoken_text
from vivavoce_server.streaming import SpeechResponse, SpeechRoute

router = APIRouter(prefix="/v1")
speech_router = APIRouter(prefix="/v1", route_class=SpeechRoute)
ServiceDep = Annotated[Service, Depends(get_service)]
Responses = dict[int | str, dict[str, Any]]
SPEECH_TYPES = (*(audio.media_type for audio in FORMATS.values()), SseFraming.media_type)
ERROR_RESPONSES: Responses = {
    400: {"description": "A field is wrong; `param` names it", "model": ErrorBody},
    401: {"description": "The API key is missing or unknown", "model": ErrorBody},
    404: {"description": "There is no such model", "model": ErrorBody},
    413: {"description": "The body is too large", "model": ErrorBody},
    429: {"description": "The queue is full, the wait too long, or a limit of the key is reached", "model": ErrorBody},
    500: {"description": "The speech failed", "model": ErrorBody},
    503: {"description": "The server is starting or stopping", "model": ErrorBody},
}
SPEECH_RESPONSES: Responses = {
    200: {
        "description": "The audio, or the text that would be said",
        "headers": {
            WARNINGS_HEADER: {"description": WARNINGS_ABOUT, "schema": {"type": "string"}},
            SYNTHETIC_HEADER: {"description": SYNTHETIC_ABOUT, "schema": {"type": "string"}},
        },
        "content": {media_type: {} for media_type in SPEECH_TYPES},
        "model": SpokenText,
    },
    **ERROR_RESPONSES,
}


class ReadableTextObject(BaseModel):
    """The text that a model reads, and the `stages` of reading by which it gets such text unless a request says more.

    The stages are those for the model's only language, or for a text whose language is not given.
    """

    reads: str
    alphabet: str | None
    letters: str
    stages: list[str]


class ModelObject(BaseModel):
    """OpenAI's fields of a model, then the model's capabilities."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "vivavoce"
    task: str
    languages: list[str]
    takes_instructions: bool
    clones: bool
    text: ReadableTextObject


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
        text=text,
    )


class ModelList(BaseModel):
    object: str = "list"
    data: list[ModelObject]


class AudioModel(BaseModel):
    id: str
    name: str


class AudioModelList(BaseModel):
    models: list[AudioModel]


@speech_router.post("/audio/speech", status_code=200, response_class=SpeechResponse, responses=SPEECH_RESPONSES)
async def speak(body: SpeechRequest, service: ServiceDep, caller: CallerDep, max_wait_s: MaxWaitDep) -> Response:
    """Speaks `input`. The audio is sent while it is made, unless `stream` is false.

    With `return` "text", nothing is spoken: the answer is the text that would be said.
    """
    job = prepare(body, service, max_wait_s)
    if body.answer == "text":
        with caller.speaking():
            return JSONResponse(spoken_text(await job.read()).model_dump())
    framing = SseFraming(job.audio.mark) if body.stream_format == "sse" else AudioFraming(job.audio.media_type)
    return SpeechResponse(service, caller, job, framing, whole=body.stream is False)


@router.get("/models")
async def list_models(request: Request, service: ServiceDep) -> ModelList | list[ElevenLabsModel]:
    """Lists the models as OpenAI does; for a client that sends ElevenLabs' header, as ElevenLabs does."""
    if ELEVENLABS_HEADER in request.headers:
        return elevenlabs_models(service)
    return ModelList(data=[model_object(service, name) for name in service.engines])


@router.get("/audio/models")
async def list_audio_models(service: ServiceDep) -> AudioModelList:
    """Lists the models for Open WebUI, which requests this path."""
    return AudioModelList(models=[AudioModel(id=name, name=name) for name in service.engines])


@router.get("/models/{model:path}", responses={404: {"model": ErrorBody}})
async def get_model(model: str, service: ServiceDep) -> ModelObject:
    model_id, _ = service.find_model(model)
    return model_object(service, model_id)
