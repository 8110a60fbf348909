"""Bodies that are forms, in multipart or urlencoded. The same fields may come as JSON, unless a file is among them."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypeVar

from fastapi import UploadFile
from pydantic import BeforeValidator, ValidationError
from pydantic_core import PydanticCustomError
from starlette.datastructures import FormData
from starlette.datastructures import UploadFile as ReceivedFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from vivavoce_server.errors import ApiError, invalid, validation_detail
from vivavoce_server.json_bodies import is_json, json_body, sent_as
from vivavoce_server.schemas import Fields

MAX_PARTS = 16
"""Most fields, and most files, of a form. A part takes the event loop 0.05 ms."""
MAX_FIELD_BYTES = 2**20
MULTIPART, URLENCODED, JSON = "multipart/form-data", "application/x-www-form-urlencoded", "application/json"
INVALID_BODY = "invalid_body"
Form = TypeVar("Form", bound=Fields)


def _checked_file(given: object) -> object:
    """Refuses what is no file in the words of a form; FastAPI's own name its classes."""
    if not isinstance(given, ReceivedFile):
        raise PydanticCustomError("file_type", "Input should be a file: a part of multipart/form-data with a file name")
    return given


FormFile = Annotated[UploadFile, BeforeValidator(_checked_file)]
"""A field that is a file. Text in its place is refused."""


def form_of(kind: type[Form]) -> Callable[[Request], AsyncIterator[Form]]:
    """A FastAPI dependency that reads a form, whose files are closed when the response has been sent.

    It raises an ApiError, 400, for a body that is none, or for a field that is wrong, unknown or there twice.
    """

    async def read(request: Request) -> AsyncIterator[Form]:
        if is_json(request):
            given = await json_body(request)
            if not isinstance(given, dict):
                raise ApiError(400, "The body is a JSON object with the fields of the form", None, INVALID_BODY)
            yield _validated(kind, given)
            return
        form = await _form_of(request)
        try:
            yield _validated(kind, _fields_of(form))
        finally:
            await form.close()

    return read


def form_body(kind: type[Fields]) -> dict[str, Any]:
    """The OpenAPI description of a route whose body is such a form."""
    schema = kind.model_json_schema()
    plain = {name: field for name, field in schema["properties"].items() if not _is_file(field)}
    content = {MULTIPART: {"schema": schema}}
    if not schema["properties"].keys() - plain.keys() & set(schema.get("required", ())):
        content[JSON] = {"schema": {**schema, "properties": plain}}
    return {"requestBody": {"required": True, "content": content}}


def _is_file(field: dict[str, Any]) -> bool:
    return any(
        "contentMediaType" in part or part.get("format") == "binary" for part in (field, *field.get("anyOf", ()))
    )


async def _form_of(request: Request) -> FormData:
    if not request.headers.get("content-type", "").lower().startswith((MULTIPART, URLENCODED)):
        message = f"The body came {sent_as(request)}; send {MULTIPART}, or JSON with the header Content-Type: {JSON}"
        raise ApiError(400, message, None, INVALID_BODY)
    try:
        return await request.form(max_files=MAX_PARTS, max_fields=MAX_PARTS, max_part_size=MAX_FIELD_BYTES)
    except ClientDisconnect:
        raise ApiError(400, "The body ended before its announced length", None, INVALID_BODY) from None
    except OSError as error:  # a file of the form is written to the disk while it arrives
        raise HTTPException(400, "The body could not be received") from error
    except ValueError as error:
        raise ApiError(400, f"The form cannot be read: {error}", None, INVALID_BODY) from None


def _fields_of(form: FormData) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name in fields:
            raise invalid(name, f"{name} is in the form twice; send it once")
        fields[name] = value
    return fields


def _validated(kind: type[Form], given: dict[str, Any]) -> Form:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        detail = validation_detail(first["loc"], first["type"], first["msg"])
        raise ApiError(400, detail.message, detail.param, detail.code or "invalid_value") from None
