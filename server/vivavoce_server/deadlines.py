"""Limit on a request's wait for its turn. A header from the client overrides the operator's setting."""

from typing import Annotated

from fastapi import Depends, Header
from pydantic import Field, TypeAdapter, ValidationError
from starlette.requests import HTTPConnection

from vivavoce_server.config import MAX_WAIT_S, ServerConfig
from vivavoce_server.errors import invalid
from vivavoce_server.service import Service, get_service

HEADER = "x-request-timeout"
Seconds = Annotated[float, Field(gt=0, le=MAX_WAIT_S, allow_inf_nan=False)]
SECONDS: TypeAdapter[float] = TypeAdapter(Seconds)
DESCRIPTION = "Seconds within which the speech must begin. If it cannot, the answer is a 429"


async def _of_request(
    service: Annotated[Service, Depends(get_service)],
    x_request_timeout: Annotated[Seconds | None, Header(description=DESCRIPTION, examples=[5.0])] = None,
) -> float:
    return service.config.max_wait_s if x_request_timeout is None else x_request_timeout


MaxWaitDep = Annotated[float, Depends(_of_request)]
"""The limit in seconds, as a FastAPI dependency. An invalid header is answered with a 400 that names it."""


def max_wait_of(connection: HTTPConnection, config: ServerConfig) -> float:
    """The limit in seconds for a WebSocket, whose protocol sends errors in its own messages.

    Raises:
        ApiError: 400, the header is invalid; names it.
    """
    given = connection.headers.get(HEADER)
    if given is None:
        return config.max_wait_s
    try:
        return SECONDS.validate_python(given)
    except ValidationError as error:
        raise invalid(HEADER, f"{HEADER}: {error.errors()[0]['msg']}") from None
