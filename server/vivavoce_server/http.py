"""OpenAI's routes: speech, models, voices."""

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from vivavoce_server.audio import SpeechEncoder
from vivavoce_server.containers import FORMATS
from vivavoce_server.errors import ErrorBody
from vivavoce_server.framing import AudioFraming, SseFraming
from vivavoce_server.schemas import SpeechRequest
from vivavoce_server.service import Service, get_service
from vivavoce_server.streaming import SpeechResponse
from vivavoce_server.voices import voice_aliases

router = APIRouter(prefix="/v1")
ServiceDep = Annotated[Service, Depends(get_service)]
SPEECH_TYPES = (*(audio.media_type for audio in FORMATS.values()), SseFraming.media_type)
SPEECH_RESPONSES: dict[int | str, dict[str, object]] = {
    200: {"description": "The audio", "content": {media_type: {} for media_type in SPEECH_TYPES}},
    400: {"description": "A field is wrong; `param` names it", "model": ErrorBody},
    404: {"description": "There is no such model", "model": ErrorBody},
    429: {"description": "The queue is full", "model": ErrorBody},
    503: {"description": "The server is starting or stopping", "model": ErrorBody},
}


class ModelObject(BaseModel):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "vivavoce"


class ModelList(BaseModel):
    object: str = "list"
    data: list[ModelObject]


class VoiceObject(BaseModel):
    """A speaker. `aliases` are the OpenAI names that mean it."""

    object: str = "audio.voice"
    id: str
    name: str
    model: str
    aliases: list[str]


class VoiceList(BaseModel):
    object: str = "list"
    voices: list[VoiceObject]


@router.post("/audio/speech", response_class=SpeechResponse, responses=SPEECH_RESPONSES)
async def speak(body: SpeechRequest, service: ServiceDep) -> SpeechResponse:
    """Speaks `input`. The audio is sent as it is made, unless `stream` is false."""
    _, engine = service.find_model(body.model)
    request = body.to_request(engine.info, service.config)
    options = body.audio_options()
    framing = SseFraming() if body.stream_format == "sse" else AudioFraming(options.media_type)
    encoder = SpeechEncoder(options, engine.info.sample_rate)
    return SpeechResponse(service, lambda: engine.submit(request), encoder, framing, whole=body.stream is False)


@router.get("/models")
async def list_models(service: ServiceDep) -> ModelList:
    return ModelList(data=[ModelObject(id=name, created=service.created_s) for name in service.engines])


@router.get("/models/{model:path}", responses={404: {"model": ErrorBody}})
async def get_model(model: str, service: ServiceDep) -> ModelObject:
    model_id, _ = service.find_model(model)
    return ModelObject(id=model_id, created=service.created_s)


@router.get("/audio/voices")
async def list_voices(service: ServiceDep) -> VoiceList:
    voices: list[VoiceObject] = []
    for model, engine in service.engines.items():
        aliases = voice_aliases(engine.info)
        voices += (
            VoiceObject(
                id=speaker,
                name=speaker,
                model=model,
                aliases=[alias for alias, target in aliases.items() if target == speaker],
            )
            for speaker in engine.info.speakers
        )
    return VoiceList(voices=voices)
