"""/v1/audio/voices: lists all voices, and stores and deletes clients' voices."""

import asyncio
import json
import re
from functools import partial
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Depends, Path
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from vivavoce_engine import (
    MAX_BLEND_CHARS,
    MAX_REFERENCE_BYTES,
    ConsentStore,
    ModelInfo,
    Rejected,
    SpeakerInfo,
    SpeechEngine,
    StoredVoice,
    VoiceStore,
)

from vivavoce_server.access import CallerDep
from vivavoce_server.designing import SCRIPT, find_models, store_designed
from vivavoce_server.errors import ApiError, invalid, rejected_as, responses
from vivavoce_server.forms import FormFile, form_body, form_of
from vivavoce_server.http import ERROR_RESPONSES, Responses, ServiceDep
from vivavoce_server.json_bodies import parse_json
from vivavoce_server.openai_voices import voice_aliases
from vivavoce_server.references import check_ref_text, mean_embedding, mismatch_warnings
from vivavoce_server.schemas import Fields, GivenEmbedding, Name, NullIsDefault, Transcript
from vivavoce_server.service import Service

router = APIRouter(prefix="/v1/audio", tags=["Voices"])
EMBEDDINGS: TypeAdapter[GivenEmbedding] = TypeAdapter(GivenEmbedding, config=ConfigDict(allow_inf_nan=False))
MAX_EMBEDDING_CHARS = 2**20
"""Longest `speaker_embedding` of a form, which is JSON. A field of a form has no more."""
SOURCES = ("audio_sample", "speaker_embedding", "voice")
NO_MODEL = re.compile(r"(?:auto|[0-9]{4}-[0-9]{2}-[0-9]{2})?")
"""Model names in a form that mean no particular model: those of OpenAI's models of voice design."""
CONSENT_ID = re.compile(r"cons_\S*")
"""The form of a consent's id. Any other consent is in words."""
STORING_RESPONSES: Responses = {
    **ERROR_RESPONSES,
    **responses(
        _409="The maximum number of voices is stored; delete one first",
        _507="The voice could not be written to the disk",
    ),
}
GETTING_RESPONSES: Responses = responses(_404="There is no such voice")
DELETING_RESPONSES: Responses = responses(
    _404="There is no such stored voice", _507="The voice could not be deleted from the disk"
)
VoiceId = Annotated[str, Path(description="Name of the voice, in any letter case", examples=["heart"])]


class VoiceObject(BaseModel):
    """A voice that requests may name.

    `aliases` are the OpenAI names that mean it. `model` is the first model that can use it, or null if no model here
    can use a stored voice. Only stored voices have `created_at` and `type`, and designed ones a `prompt`. `sex`,
    `accent`, `language` (the speaker's own) and `description` are what the checkpoint states of its speaker, or null.
    `languages` are all that it speaks, its own first.
    """

    object: Literal["audio.voice"] = Field(default="audio.voice", description="Kind of the object")
    id: str = Field(description="Name of the voice in requests", examples=["heart"])
    name: str = Field(description="The same name", examples=["heart"])
    model: str | None = Field(
        description="The first model that can use it; null if none here can", examples=["vivavoce-small-en"]
    )
    aliases: list[str] = Field(description="OpenAI's names that mean it", examples=[["alloy", "shimmer"]])
    created_at: int | None = Field(
        default=None, description="Time of storing, in seconds since 1970; null for a speaker", examples=[1_796_000_000]
    )
    type: Literal["audio_sample", "prompt"] | None = Field(
        default=None, description="Source of a stored voice", examples=["audio_sample"]
    )
    prompt: str | None = Field(
        default=None, description="Description of a designed voice", examples=["A calm, low voice."]
    )
    sex: Literal["female", "male"] | None = Field(
        default=None, description="Sex of the speaker, if stated", examples=["female"]
    )
    accent: str | None = Field(default=None, description="Accent of the speaker, if stated", examples=["American"])
    language: str | None = Field(
        default=None, description="The speaker's own language, if stated", examples=["english"]
    )
    languages: list[str] = Field(
        default=[], description="All languages that it speaks, its own first", examples=[["english"]]
    )
    description: str | None = Field(
        default=None, description="Sound of the voice, if stated", examples=["Warm and clear."]
    )


class VoiceList(BaseModel):
    """The voices of the server."""

    object: Literal["list"] = Field(default="list", description="Kind of the object")
    voices: list[VoiceObject] = Field(description="Speakers of all models, then stored voices")


class StoredVoiceObject(BaseModel):
    """OpenAI's fields of a newly stored voice."""

    object: Literal["audio.voice"] = Field(default="audio.voice", description="Kind of the object")
    id: str = Field(description="Name of the voice in requests", examples=["mine"])
    name: str = Field(description="The same name", examples=["mine"])
    created_at: int = Field(description="Time of storing, in seconds since 1970", examples=[1_796_000_000])
    type: Literal["audio_sample", "prompt"] = Field(description="Source of the voice", examples=["audio_sample"])
    prompt: str | None = Field(
        default=None, description="Description of a designed voice", examples=["A calm, low voice."]
    )
    warnings: list[str] | None = Field(
        default=None,
        description="Sentences about what may go wrong with the voice, such as ref_text_mismatch; missing without one",
        examples=[["ref_text_mismatch: ref_text is most likely not what is said in the recording"]],
    )


class DeletedVoice(BaseModel):
    """OpenAI's fields of a voice that was deleted."""

    object: Literal["audio.voice.deleted"] = Field(default="audio.voice.deleted", description="Kind of the object")
    id: str = Field(description="Name of the voice that is gone", examples=["mine"])
    deleted: bool = Field(default=True, description="True", examples=[True])


def _as_text(given: object) -> object:
    """A list of a JSON body as the text that a form has."""
    return json.dumps(given) if isinstance(given, list) else given


class VoiceForm(Fields):
    """A voice to store, from exactly one source: `audio_sample`, `speaker_embedding`, `voice` or `prompt`.

    `audio_sample` is a recording; `ref_text`, its transcript, is optional. `speaker_embedding` is JSON: one embedding,
    or a weighted list as in a request. `voice` is a mix of existing voices. `consent` is the id of a stored consent, or
    the speaker's permission in words. `model` is needed only if several models could take the voice.

    With `type` "prompt", a VoiceDesign model speaks `script_hint` as `prompt` describes, and a Base model clones that.
    """

    name: Name = Field(description="Name of the voice in later requests", examples=["mine"])
    consent: Transcript | None = Field(
        default=None,
        description="The id of a stored consent, or the speaker's permission in words",
        examples=["This is my voice, and I agree."],
    )
    type: Annotated[
        Literal["audio_sample", "prompt"],
        Field(description="`prompt` designs the voice", examples=["audio_sample"]),
        NullIsDefault(),
    ] = "audio_sample"
    prompt: Transcript | None = Field(
        default=None, description="Description of the voice to design", examples=["A calm, low voice."]
    )
    script_hint: Transcript | None = Field(
        default=None, description="Text that the designed voice speaks first", examples=["Good morning, and welcome."]
    )
    audio_sample: FormFile | None = Field(
        default=None, description="A recording of 1 to 30 s, at most 10 MiB", examples=["(the bytes of me.wav)"]
    )
    ref_text: Transcript | None = Field(
        default=None, description="Transcript of the recording", examples=["What I say in it."]
    )
    speaker_embedding: Annotated[str, Field(max_length=MAX_EMBEDDING_CHARS), BeforeValidator(_as_text)] | None = Field(
        default=None,
        description="One embedding as JSON, or a weighted list as in a request",
        examples=["[0.013, -0.021, 0.004]"],
    )
    voice: Annotated[str, Field(max_length=MAX_BLEND_CHARS)] | None = Field(
        default=None, description="A mix of existing voices", examples=["heart(2)+michael(1)"]
    )
    model: Name | None = Field(default=None, description="A model, if several could take the voice", examples=["base"])


@router.get("/voices", summary="List the voices")
async def list_voices(service: ServiceDep) -> VoiceList:
    """Lists the models' speakers, then stored voices."""
    voices = [
        _speaker(speaker, model, engine.info)
        for model, engine in service.engines.items()
        for speaker in engine.info.speakers
    ]
    store = find_store(service)
    if store is not None:
        voices += (_listed(voice, service) for voice in await asyncio.to_thread(store.all))
    return VoiceList(voices=voices)


@router.get("/voices/{voice_id}", summary="Get a voice", responses=GETTING_RESPONSES)
async def get_voice(voice_id: VoiceId, service: ServiceDep) -> VoiceObject:
    """One voice, its name in any letter case; OpenAI's names mean theirs, unless a voice has that name itself.

    If several models have a speaker of that name, the first one's.
    """
    wanted = voice_id.casefold()
    voices = (await list_voices(service)).voices
    for voice in voices:
        if wanted in (voice.id.casefold(), voice.name.casefold()):
            return voice
    for voice in voices:
        if wanted in voice.aliases:
            return voice
    raise ApiError(404, f"There is no voice {voice_id!r}", None, "voice_not_found")


def _speaker(name: str, model: str, info: ModelInfo) -> VoiceObject:
    sound = info.speaker_infos.get(name, SpeakerInfo())
    return VoiceObject(
        id=name,
        name=name,
        model=model,
        aliases=[alias for alias, target in voice_aliases(info).items() if target == name],
        sex=sound.sex,
        accent=sound.accent,
        language=sound.language,
        languages=sorted(info.spoken_languages, key=lambda language: language != sound.language),
        description=sound.description,
    )


def _listed(voice: StoredVoice, service: Service) -> VoiceObject:
    size = voice.reference.embedding.size
    fitting = (model for model, engine in service.engines.items() if engine.info.embedding_size == size)
    model = next(fitting, None)
    stored = _stored(voice)
    return VoiceObject(
        id=stored.id,
        name=stored.name,
        model=model,
        aliases=[],
        created_at=stored.created_at,
        type=stored.type,
        prompt=stored.prompt,
        languages=[] if model is None else list(service.engines[model].info.spoken_languages),
    )


@router.post(
    "/voices",
    summary="Store a voice",
    responses=STORING_RESPONSES,
    openapi_extra=form_body(VoiceForm),
    response_model_exclude_none=True,
)
async def add_voice(
    form: Annotated[VoiceForm, Depends(form_of(VoiceForm))], service: ServiceDep, caller: CallerDep
) -> StoredVoiceObject:
    """Stores a voice for later requests. It survives a restart, and exists on every server that shares the folder."""
    _check_name(form.name, service)
    if form.type == "prompt":
        _check_prompt(form)
        models = find_models(_model_of(form), service)
        script = form.script_hint or SCRIPT
        with caller.speaking(), service.count_speech():
            return _stored(await store_designed(form.name, form.prompt or "", script, models, service, caller))
    source = _check(form)
    consent = await _consent_of(form, service)
    embedding = None if form.speaker_embedding is None else parse_embedding(form.speaker_embedding)
    engine = _engine_for(form, service, 0 if embedding is None else embedding.size)
    # Encoding counts as speech does, and a server that stops finishes it.
    with caller.speaking(), service.count_speech():
        try:
            voice: bytes | str | NDArray[np.float32] | None = embedding if embedding is not None else form.voice
            if form.audio_sample is not None:
                voice = await form.audio_sample.read()
            assert voice is not None, "there is one source"
            add = partial(engine.voices.add, form.name, consent, voice, form.ref_text or "")
            return _stored(await service.references.in_thread(add))
        except Rejected as error:
            raise rejected_as(error, reference=source) from error


def _stored(voice: StoredVoice) -> StoredVoiceObject:
    return StoredVoiceObject(
        id=voice.name,
        name=voice.label or voice.name,
        created_at=voice.created_at_s,
        type="prompt" if voice.prompt else "audio_sample",
        prompt=voice.prompt or None,
        warnings=list(mismatch_warnings([voice.reference])) or None,
    )


async def _consent_of(form: VoiceForm, service: Service) -> str:
    """The consent in words. Raises a 400 if the form has none, or names a recording that is not there."""
    given = (form.consent or "").strip()
    if not given:
        message = "Missing required field: consent, the id of a stored consent or the speaker's permission in words"
        raise invalid("consent", message, "missing_required_parameter")
    if not CONSENT_ID.fullmatch(given):
        return given
    store = find_consents(service)
    found = None if store is None else await asyncio.to_thread(store.get, given)
    if found is None:
        message = f"There is no consent {given!r}; POST /v1/audio/voice_consents stores one"
        raise invalid("consent", message, "consent_not_found")
    return f"{found.id}: {found.name} ({found.language})"


def parse_embedding(text: str) -> NDArray[np.float32]:
    """The embedding in a form, float32 [size]. Raises a 400 if `speaker_embedding` is invalid."""
    try:
        return mean_embedding(
            EMBEDDINGS.validate_python(parse_json(text.encode(errors="replace"), "speaker_embedding"))
        )
    except ApiError as error:
        raise invalid("speaker_embedding", str(error)) from None
    except ValidationError as error:
        raise invalid("speaker_embedding", f"speaker_embedding: {error.errors()[0]['msg']}") from error
    except Rejected as error:
        raise rejected_as(error, reference="speaker_embedding") from error


def _check_name(given: str, service: Service) -> None:
    """Raises a 400 if a speaker has the name."""
    name = given.strip().casefold()
    if any(name == speaker.casefold() for engine in service.engines.values() for speaker in engine.info.speakers):
        raise invalid("name", f"There is a speaker {name!r} already")


def _check_prompt(form: VoiceForm) -> None:
    """Raises a 400 for a form that describes a voice and has none, or that has the voice itself."""
    for name in (*SOURCES, "consent", "ref_text"):
        if getattr(form, name) is not None:
            raise invalid(name, f"A voice of type prompt is described in words; leave {name} out")
    for name in ("prompt", "script_hint"):
        value = getattr(form, name)
        if value is None and name == "prompt":
            raise invalid(name, f"Missing required field: {name}", "missing_required_parameter")
        if value is not None and not value.strip():
            raise invalid(name, f"{name} is blank")


def _check(form: VoiceForm) -> str:
    """The name of the field that contains the voice. Raises a 400 for fields that exclude each other."""
    for name in ("prompt", "script_hint"):
        if getattr(form, name) is not None:
            raise invalid(name, f'{name} describes a voice of type "prompt"; send that type, or leave {name} out')
    given = [name for name in SOURCES if getattr(form, name) is not None]
    if not given:
        raise invalid("audio_sample", f"Missing: one of {', '.join(SOURCES)}", "missing_required_parameter")
    if len(given) > 1:
        raise invalid(given[1], f"{' and '.join(given)} are several voices; send one of them")
    if form.ref_text is not None and form.ref_text.strip():
        if given != ["audio_sample"]:
            raise invalid("ref_text", "ref_text is what is said in audio_sample, which is missing")
        check_ref_text(form.ref_text)
    if form.audio_sample is not None and (form.audio_sample.size or 0) > MAX_REFERENCE_BYTES:
        raise invalid("audio_sample", f"The recording is larger than {MAX_REFERENCE_BYTES // 2**20} MiB")
    return given[0]


def _model_of(form: VoiceForm) -> str | None:
    """The model that the form names; None for none in particular."""
    return None if form.model is None or NO_MODEL.fullmatch(form.model) else form.model


def _engine_for(form: VoiceForm, service: Service, size: int) -> SpeechEngine:
    """The model that the form names, or else the first model that can take such a voice.

    If no model can, this is the first model, which then refuses the voice. `size` is the embedding's size, or 0 if the
    form has no embedding.
    """
    named = _model_of(form)
    if named is not None:
        return service.find_model(named)[1]
    for engine in service.engines.values():
        if form.audio_sample is not None and not engine.info.clones:
            continue
        if size and engine.info.embedding_size != size:
            continue
        return engine
    return next(iter(service.engines.values()))


@router.delete("/voices/{voice_id}", summary="Delete a stored voice", responses=DELETING_RESPONSES)
async def delete_voice(voice_id: VoiceId, service: ServiceDep) -> DeletedVoice:
    """Deletes a stored voice. Running speech with this voice continues."""
    store = find_store(service)
    if store is None or not await asyncio.to_thread(store.delete, voice_id):
        raise ApiError(404, f"There is no stored voice {voice_id!r}", None, "voice_not_found")
    return DeletedVoice(id="_".join(voice_id.casefold().split()))


def find_consents(service: Service) -> ConsentStore | None:
    """The store of consents, which is in the folder of voices; None without one."""
    store = find_store(service)
    return None if store is None else ConsentStore(store.folder, store.max_voices)


def find_store(service: Service) -> VoiceStore | None:
    """The store that the engines share; None without one."""
    stores = (engine.voices.store for engine in service.engines.values())
    return next((store for store in stores if store is not None), None)
