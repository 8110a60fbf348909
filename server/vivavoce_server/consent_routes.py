"""/v1/audio/voice_consents: recordings in which speakers consent to the cloning of their voices, as OpenAI has them."""

import asyncio
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, Field
from vivavoce_engine import MAX_REFERENCE_BYTES, Consent, ConsentStore, Rejected

from vivavoce_server.access import CallerDep
from vivavoce_server.errors import ApiError, invalid, rejected_as, responses
from vivavoce_server.forms import FormFile, form_body, form_of
from vivavoce_server.http import ERROR_RESPONSES, Responses, ServiceDep
from vivavoce_server.json_bodies import JsonRoute
from vivavoce_server.schemas import Fields, Name
from vivavoce_server.service import Service
from vivavoce_server.voice_routes import DELETING_RESPONSES, STORING_RESPONSES, find_consents

router = APIRouter(prefix="/v1/audio/voice_consents", tags=["Consents"])
json_router = APIRouter(prefix="/v1/audio/voice_consents", route_class=JsonRoute, tags=["Consents"])
NOT_FOUND: Responses = responses(_404="There is no such consent")
ConsentId = Annotated[str, Path(description="Id of the consent", examples=["cons_1234"])]
MAX_PAGE = 100


class ConsentForm(Fields):
    """A consent to store. `language` is the BCP 47 tag of what is said in the recording."""

    name: Name = Field(description="Name of the consent", examples=["Ada"])
    language: Name = Field(description="BCP 47 tag of what is said", examples=["en-GB"])
    recording: FormFile = Field(description="The recording, at most 10 MiB", examples=["(the bytes of consent.wav)"])


class ConsentName(Fields):
    """A new name of a consent."""

    name: Name = Field(description="Name of the consent", examples=["Ada"])


class ConsentObject(BaseModel):
    """OpenAI's fields of a consent."""

    object: Literal["audio.voice_consent"] = Field(default="audio.voice_consent", description="Kind of the object")
    id: str = Field(description="Id of the consent", examples=["cons_1234"])
    name: str = Field(description="Name of the consent", examples=["Ada"])
    language: str = Field(description="BCP 47 tag of what is said", examples=["en-GB"])
    created_at: int = Field(description="Time of storing, in seconds since 1970", examples=[1_796_000_000])


class ConsentPage(BaseModel):
    """Consents, the newest first. `last_id` is the `after` of the next page."""

    object: Literal["list"] = Field(default="list", description="Kind of the object")
    data: list[ConsentObject] = Field(description="The consents")
    first_id: str | None = Field(description="Id of the first one", examples=["cons_1234"])
    last_id: str | None = Field(description="Id of the last one", examples=["cons_1234"])
    has_more: bool = Field(description="True if another page follows", examples=[False])


class DeletedConsent(BaseModel):
    """OpenAI's fields of a consent that was deleted."""

    object: Literal["audio.voice_consent"] = Field(default="audio.voice_consent", description="Kind of the object")
    id: str = Field(description="Id of the consent that is gone", examples=["cons_1234"])
    deleted: bool = Field(default=True, description="True", examples=[True])


def _store(service: Service) -> ConsentStore:
    """Raises a 404 if this server stores nothing."""
    store = find_consents(service)
    if store is None:
        raise ApiError(404, "This server stores no consents", None, "consent_not_found")
    return store


def _object(consent: Consent | None, consent_id: str) -> ConsentObject:
    if consent is None:
        raise _not_found(consent_id)
    return ConsentObject(id=consent.id, name=consent.name, language=consent.language, created_at=consent.created_at_s)


def _not_found(consent_id: str) -> ApiError:
    return ApiError(404, f"There is no consent {consent_id!r}", None, "consent_not_found")


@router.post("", summary="Store a consent", responses=STORING_RESPONSES, openapi_extra=form_body(ConsentForm))
async def add_consent(
    form: Annotated[ConsentForm, Depends(form_of(ConsentForm))], service: ServiceDep, caller: CallerDep
) -> ConsentObject:
    """Stores a recording in which a speaker consents. It must be readable; what is said in it is not checked."""
    if (form.recording.size or 0) > MAX_REFERENCE_BYTES:
        raise invalid("recording", f"The recording is larger than {MAX_REFERENCE_BYTES // 2**20} MiB")
    store = find_consents(service)
    if store is None:
        raise ApiError(400, "This server stores no consents", None, "not_available")
    voices = next(iter(service.engines.values())).voices
    with caller.speaking(), service.count_speech():
        recording = await form.recording.read()
        try:
            await service.references.in_thread(partial(voices.check_recording, recording))
            stored = await service.references.in_thread(partial(store.add, form.name, form.language, recording))
        except Rejected as error:
            raise rejected_as(error, reference="recording") from error
    return _object(stored, stored.id)


@router.get("", summary="List the consents", responses=ERROR_RESPONSES)
async def list_consents(
    service: ServiceDep,
    after: Annotated[
        str | None, Query(max_length=64, description="The last id of the page before", examples=["cons_1234"])
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Consents on a page", examples=[20])] = 20,
) -> ConsentPage:
    """Lists the consents, the newest first. `after` is the last id of the page before."""
    store = find_consents(service)
    found, has_more = ([], False) if store is None else await asyncio.to_thread(store.page, after, limit)
    data = [_object(consent, consent.id) for consent in found]
    return ConsentPage(
        data=data, first_id=data[0].id if data else None, last_id=data[-1].id if data else None, has_more=has_more
    )


@router.get("/{consent_id}", summary="Get a consent", responses=NOT_FOUND)
async def get_consent(consent_id: ConsentId, service: ServiceDep) -> ConsentObject:
    """One consent, without its recording."""
    return _object(await asyncio.to_thread(_store(service).get, consent_id), consent_id)


@json_router.post("/{consent_id}", summary="Rename a consent", responses={**STORING_RESPONSES, **NOT_FOUND})
async def rename_consent(consent_id: ConsentId, body: ConsentName, service: ServiceDep) -> ConsentObject:
    """Changes the name of a consent."""
    try:
        renamed = await asyncio.to_thread(_store(service).rename, consent_id, body.name)
    except Rejected as error:
        raise rejected_as(error) from error
    return _object(renamed, consent_id)


@router.delete("/{consent_id}", summary="Delete a consent", responses=DELETING_RESPONSES)
async def delete_consent(consent_id: ConsentId, service: ServiceDep) -> DeletedConsent:
    """Deletes a consent. Voices that were stored with it stay."""
    if not await asyncio.to_thread(_store(service).delete, consent_id):
        raise _not_found(consent_id)
    return DeletedConsent(id=consent_id)
