"""Maps every error to OpenAI's error JSON and an HTTP status, in one table.

The four keys message, type, param and code are always present. OpenAI's SDKs retry 408, 409, 429 and 5xx.
"""

import errno
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, Field
from starlette.exceptions import HTTPException
from vivavoce_engine import (
    EndlessSpeech,
    EngineError,
    NotServing,
    Overloaded,
    RefTextMismatch,
    Rejected,
    StoreFailed,
    StoreFull,
    SynthesisFailed,
    ThinkerFailed,
)

from vivavoce_server.methods import allowed_methods
from vivavoce_server.request_lines import note_error
from vivavoce_server.wrong_paths import hint

log = logging.getLogger(__name__)

NOT_SERVING_RETRY_S = 5.0
BAD_REQUEST = 400
UNAUTHORIZED = 401
METHOD_NOT_ALLOWED = 405
STORAGE_FULL = 507
INVALID_REQUEST = "invalid_request_error"
REF_TEXT_MISMATCH: Final = "ref_text_mismatch"
"""Code of the error about a transcript of another recording, and the beginning of the warning about it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Status, type and code of one class of errors in responses."""

    status: int
    type: str
    code: str


KINDS: dict[type[EngineError], Kind] = {
    RefTextMismatch: Kind(400, INVALID_REQUEST, REF_TEXT_MISMATCH),
    Rejected: Kind(400, INVALID_REQUEST, "invalid_value"),
    Overloaded: Kind(429, "rate_limit_error", "queue_full"),
    StoreFull: Kind(409, INVALID_REQUEST, "store_full"),
    StoreFailed: Kind(STORAGE_FULL, "server_error", "store_failed"),
    NotServing: Kind(503, "service_unavailable", "not_serving"),
    SynthesisFailed: Kind(500, "server_error", "synthesis_failed"),
    EndlessSpeech: Kind(500, "server_error", "endless_speech"),
    ThinkerFailed: Kind(502, "server_error", "thinker_failed"),
    EngineError: Kind(500, "server_error", "engine_error"),
}

HTTP_CODES = {400: "invalid_body", 404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
FIELD_OF_PARAM = {
    "text": "input",
    "speaker": "voice",
    "max_frames": "max_new_tokens",
    "first_chunk_frames": "initial_codec_chunk_frames",
    "streaming_text": "non_streaming_mode",
    "reference": "voice",
}
"""Maps a SynthesisRequest's field to the request's field, where the names differ."""
SHOWN_CHARS = 64
"""Most characters of a name, header or tag of the client that a message repeats."""
MAX_MESSAGE_CHARS = 4096
"""Longest message. A path or a method that a message repeats may have 64 KiB."""
OBJECTS = frozenset({"audio", "normalization_options", "stream_options"})
"""Fields that contain fields of their own, and are no unions."""


def _printable(text: object) -> object:
    return text[:MAX_MESSAGE_CHARS].encode(errors="backslashreplace").decode() if isinstance(text, str) else text


Printable = Annotated[str, BeforeValidator(_printable)]
"""Text that may repeat a client's input, up to MAX_MESSAGE_CHARS of it. JSON can contain lone surrogates, which have no
bytes in UTF-8: they are escaped."""


class ErrorDetail(BaseModel):
    """OpenAI's error object."""

    message: Printable = Field(
        description="The reason, for people", examples=["speed: Input should be less than or equal to 4"]
    )
    type: str = Field(description="Kind of the error, as OpenAI names it", examples=["invalid_request_error"])
    param: Printable | None = Field(description="The field at fault; null if it is none", examples=["speed"])
    code: str | None = Field(description="The reason, for programs", examples=["invalid_value"])


BUG_DETAIL = ErrorDetail(message="The server has a fault; see its log", type="server_error", param=None, code="bug")


class ErrorBody(BaseModel):
    """Body of every error response."""

    error: ErrorDetail = Field(description="The error; all four keys are always there")


class ApiError(Exception):
    """A refusal by the server itself, before the engine sees the request."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None,
        code: str,
        kind: str = INVALID_REQUEST,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.detail = ErrorDetail(message=message, type=kind, param=param, code=code)


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A 400 that names the invalid field."""
    return ApiError(400, message, param, code)


def rejected_as(error: Rejected, code: str = "invalid_value", reference: str = "voice") -> ApiError:
    """Converts the engine's refusal into a 400. `reference` is the field that contained the voice."""
    param = reference if error.param == "reference" else FIELD_OF_PARAM.get(error.param, error.param)
    return invalid(param, str(error), REF_TEXT_MISMATCH if isinstance(error, RefTextMismatch) else code)


def engine_error_detail(error: EngineError) -> tuple[int, ErrorDetail]:
    """Status and error object for an error of the engine."""
    kind = next(KINDS[cls] for cls in type(error).__mro__ if cls in KINDS)
    param = FIELD_OF_PARAM.get(error.param, error.param) if isinstance(error, Rejected) else None
    return kind.status, ErrorDetail(message=str(error), type=kind.type, param=param, code=kind.code)


def error_detail(error: ApiError | EngineError) -> tuple[int, ErrorDetail]:
    """Status and error object for a request that is not served."""
    return (error.status, error.detail) if isinstance(error, ApiError) else engine_error_detail(error)


def status_of(error: Exception) -> int:
    """HTTP status for an exception of a route."""
    match error:
        case ApiError() | EngineError():
            return error_detail(error)[0]
        case RequestValidationError():
            return 400
        case HTTPException(status_code=status):
            return status
        case _:
            return 500


def error_response(status: int, detail: ErrorDetail, retry_after_s: float | None = None) -> JSONResponse:
    note_error(detail.code, detail.param)
    headers = {} if retry_after_s is None else {"Retry-After": str(math.ceil(retry_after_s))}
    return JSONResponse(ErrorBody(error=detail).model_dump(), status, headers)


def http_error_response(status: int, message: str) -> JSONResponse:
    """Response to an error of HTTP itself: a wrong path or method, or a body that is too large."""
    code = HTTP_CODES.get(status, "http_error")
    return error_response(status, ErrorDetail(message=message, type=INVALID_REQUEST, param=None, code=code))


def api_error_response(error: ApiError) -> JSONResponse:
    response = error_response(error.status, error.detail, error.retry_after_s)
    if error.status == UNAUTHORIZED:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def _on_api_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return api_error_response(error)


async def _on_engine_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, EngineError)
    match error:
        case Overloaded(retry_after_s=seconds):
            retry_after_s: float | None = seconds
        case NotServing():
            retry_after_s = NOT_SERVING_RETRY_S
        case _:
            retry_after_s = None
    response = error_response(*engine_error_detail(error), retry_after_s)
    if isinstance(error, StoreFull):
        # OpenAI's clients would otherwise retry a 409, although only deleting a voice helps.
        response.headers["X-Should-Retry"] = "false"
    return response


async def _on_invalid_body(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    reason = first["ctx"]["error"] if first["type"] == "json_invalid" else first["msg"]
    return error_response(400, validation_detail(first["loc"][1:], first["type"], reason))


def _named(path: Sequence[str | int]) -> str:
    """The field at the start of a path, with the switch that is meant if it is an object of switches."""
    return ".".join(str(part)[:SHOWN_CHARS] for part in (path[:2] if path[0] in OBJECTS else path[:1]))


UNKNOWN_FIELD: Final = "unknown_field"
"""Kind of the error about a field that an object does not have. Its reason is the field that may be meant."""


def validation_detail(path: tuple[str | int, ...], kind: str, reason: str) -> ErrorDetail:
    """Error object for one of pydantic's errors. `path` is the field's path inside the body."""
    # Errors inside a union have a longer path, which names its members. Clients know the field.
    match path:
        case (str(field), int(index), *inner) if inner:
            param: str | None = f"{field}[{index}].{_named(inner)}"
        case (str(field), *_):
            param = _named(path)
        case _:
            param = None
    match kind:
        case "unknown_field":
            message, code = f"Unknown field: {param}{reason}", "unknown_parameter"
        case "missing" if param is not None and str(path[-1]) not in param:
            message, code = f"{param}: Missing required field: {path[-1]}", "missing_required_parameter"
        case "missing":
            message, code = f"Missing required field: {param or 'the body'}", "missing_required_parameter"
        case "model_type" | "model_attributes_type" | "dict_type":
            message, code = f"{param or 'The body'}: Input should be a JSON object", "invalid_value"
        case "json_invalid":
            message, code, param = f"The body is not JSON: {reason}", "invalid_json", None
        case _:
            message, code = f"{param or 'The body'}: {reason}", "invalid_value"
    return ErrorDetail(message=message, type=INVALID_REQUEST, param=param, code=code)


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, OSError):
        # An upload is written to disk while it arrives. A failure to write is not the client's fault.
        log.error("a body could not be received: %s", error.__cause__)
        if error.__cause__.errno in (errno.EMFILE, errno.ENFILE):
            return await _on_engine_error(
                request, NotServing("The body could not be received: too many files are open")
            )
        reason = error.__cause__.strerror or "the disk does not take it"
        message = f"The body could not be received: {reason}"
        detail = ErrorDetail(message=message, type="server_error", param=None, code="store_failed")
        return error_response(STORAGE_FULL, detail)
    messages = {
        404: f"There is nothing at {request.method} {request.url.path}{hint(request.scope)}",
        405: f"{request.url.path} does not take {request.method}",
    }
    response = http_error_response(error.status_code, messages.get(error.status_code, error.detail))
    response.headers.update(error.headers or {})
    if error.status_code == METHOD_NOT_ALLOWED:
        # Starlette names the methods of the first route at the path alone.
        response.headers["Allow"] = allowed_methods(request.scope)
    return response


def bug_response() -> JSONResponse:
    """Response to an unexpected exception. The exception's text may be secret, so only the log contains it."""
    return error_response(500, BUG_DETAIL)


def is_out_of_descriptors(error: BaseException | None) -> bool:
    """True if this error, or one behind it, says that the process or the system has no descriptor left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__ or error.__context__
    return False


def descriptors_response() -> JSONResponse:
    """Response to a request for which no file could be opened, because too many are open."""
    message = "Too many connections and files are open; try again later"
    detail = ErrorDetail(message=message, type="service_unavailable", param=None, code="too_many_open_files")
    return error_response(503, detail, NOT_SERVING_RETRY_S)


def responses(**descriptions: str) -> dict[int | str, dict[str, Any]]:
    """Error responses of a route for the OpenAPI document: `_400` and so on, each with its meaning."""
    return {int(name[1:]): {"description": text, "model": ErrorBody} for name, text in descriptions.items()}


ANY_ROUTE = responses(
    _400="A field or a parameter is wrong; `param` names it",
    _401="The API key is missing or unknown",
    _403="The Host is no name of this server, or a page of another site calls a server without keys",
    _500="The server has a fault; its log has the reason",
)
"""Errors of every route behind the door."""


def install(app: FastAPI) -> None:
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(EngineError, _on_engine_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_body)
    app.add_exception_handler(HTTPException, _on_http_error)
