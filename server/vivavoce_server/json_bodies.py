"""JSON bodies of requests: what they may cost is checked before they are parsed, and large ones are parsed on a thread.

A parser holds the interpreter's lock, on a thread too, so a body that would take it long is refused. The counts below
are of bytes, in strings too: no text that is meant to be spoken comes near them.
"""

import asyncio
import email.message
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from vivavoce_server.errors import HTTP_CODES, SHOWN_CHARS, ApiError
from vivavoce_server.request_lines import note_body

MAX_VALUES = 2**17
"""Most values of a body, counted as commas. A batch of 32 embeddings has half as many."""
MAX_LISTS = 2**14
"""Most objects and lists of a body, counted as opening brackets."""
MAX_KEYS = 2**15
"""Most keys of a body, counted as colons."""
MAX_QUOTES = 2**18
"""Most quotation marks of a body."""
MAX_ESCAPES = 2**19
"""Most backslashes of a body. Base64 with a line break or an escaped slash in every line has fewer."""
MAX_SMALL_BYTES = 2 * 2**20
"""Maximum size of a body without its long strings."""
LONG_BYTES = 64 * 2**10
"""Size from which a string counts as long: a recording in base64."""
MAX_DIGITS = 400
"""Most digits of a whole number. No field takes as many; the time to read them is quadratic."""
SMALL_BODY_BYTES = 16 * 2**10
"""A body up to this size is parsed at once."""
GZIP = b"\x1f\x8b"


class JsonRequest(Request):
    """A request whose body has been parsed."""

    parsed: object = None

    async def json(self) -> object:
        note_body(self.parsed)
        return self.parsed


class JsonRoute(APIRoute):
    """A route whose body is JSON. A body that is none, or that costs too much, is a 400 that says why."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def with_json(request: Request) -> Response:
            read = JsonRequest(request.scope, request.receive)
            read.parsed = await json_body(read)
            return await handle(read)

        return with_json


async def json_body(request: Request) -> object:
    """The value of a request's body; None without one.

    Raises:
        ApiError: 400, the body is not JSON, or would cost too much.
    """
    try:
        body = await request.body()
    except ClientDisconnect:
        raise _invalid("The body ended before its announced length") from None
    if not body:
        return None
    _check_headers(request)
    small = len(body) <= SMALL_BODY_BYTES
    return parse_json(body) if small else await asyncio.to_thread(parse_json, body)


def parse_json(text: bytes, what: str = "The body") -> object:
    """The value of a JSON text, which messages call `what`.

    Raises:
        ApiError: 400, the text is not JSON, or would cost too much.
    """
    if text.startswith(GZIP):
        raise _invalid(f"{what} is compressed (gzip); send it as it is")
    _check_cost(text, what)
    too_deep = _invalid(f"{what} is nested too deeply; no field needs more than a few levels")
    try:
        return from_json(text)
    except ValueError as error:
        if "recursion" in str(error):
            raise too_deep from None
    try:
        # This parser also reads UTF-16, and halves of surrogate pairs, about which the fields have better messages.
        return json.loads(text, parse_int=_whole_number)
    except RecursionError:
        raise too_deep from None
    except UnicodeDecodeError as error:
        wrong = f"byte 0x{error.object[error.start]:02x} at {error.start}"
        raise _invalid(f"{what} is not JSON: it is no UTF-8 ({wrong})", "invalid_json") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"{what} is not JSON: {error.msg}", "invalid_json") from None


def _invalid(message: str, code: str = HTTP_CODES[400]) -> ApiError:
    return ApiError(400, message, None, code)


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _invalid(f"A number has {len(digits)} digits; the most is {MAX_DIGITS}")
    return int(digits)


def _check_headers(request: Request) -> None:
    """Raises a 400 for a body that its headers call something else than plain JSON."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        shown = encoding[:SHOWN_CHARS]
        raise _invalid(f"The body is compressed (Content-Encoding: {shown}); send it as it is")
    if not is_json(request):
        message = f"The body came {sent_as(request)}; send JSON with the header Content-Type: application/json"
        raise _invalid(message, "invalid_value")


def is_json(request: Request) -> bool:
    """True if the header says that the body is JSON."""
    header = email.message.Message()
    header["content-type"] = given = request.headers.get("content-type", "")
    kind = header.get_content_subtype() if given and header.get_content_maintype() == "application" else ""
    return kind == "json" or kind.endswith("+json")


def sent_as(request: Request) -> str:
    """The type of a body as its header gives it, for a message."""
    given = request.headers.get("content-type", "")
    return f"of type {given[:SHOWN_CHARS]!r}" if given else "without a type"


def _check_cost(text: bytes, what: str) -> None:
    """Raises a 400 for a text that a parser would take long for, or much memory. Each count is a pass of C code."""
    for most, signs, counted in (
        (MAX_VALUES, (b",",), "values"),
        (MAX_LISTS, (b"[", b"{"), "objects and lists"),
        (MAX_KEYS, (b":",), "keys"),
        (MAX_QUOTES, (b'"',), "quotation marks"),
        (MAX_ESCAPES, (b"\\",), "escaped characters"),
    ):
        number = sum(map(text.count, signs))
        if number > most:
            raise _invalid(f"{what} has about {number} {counted}; the most is {most}")
    if len(text) <= MAX_SMALL_BYTES:
        return
    long_bytes = sum(len(part) for part in text.split(b'"') if len(part) >= LONG_BYTES and part.count(b",") <= 1)
    if len(text) - long_bytes > MAX_SMALL_BYTES:
        raise _invalid(f"{what} has more than {MAX_SMALL_BYTES} bytes besides its recordings, which is the most")
