"""Answers to requests that are wrong: their status, and the object that says why."""

from dataclasses import dataclass

import httpx

from vivavoce_conformance.rules import ERRORS, PRACTICE, Group
from vivavoce_conformance.target import (
    ABSENT,
    Answer,
    Failed,
    Skipped,
    Target,
    error_of,
    excerpt_unless_audio,
    expect_refusal,
    told,
)

ERROR = Group("errors", "answers to wrong requests")
WRONG_FIELDS = (
    {"input": ABSENT},
    {"input": 5},
    {"voice": 5},
    {"response_format": "no-such-format"},
    {"speed": 9},
    {"speed": "fast"},
)
KEYS = ("message", "type", "param", "code")
LARGE_BYTES = 5_000_000
DEEP = 100_000


async def wrong(target: Target) -> Answer:
    """The refusal of a request that is wrong in one field. Raises Failed if everything is taken."""
    for fields in WRONG_FIELDS:
        answer = await target.request_speech(**fields)
        if 400 <= answer.status < 500:
            return answer
    raise Failed(f"nothing wrong is refused: {told(fields)} has status {answer.status}")


@ERROR.check("must", f"{ERRORS}; openai SDK 3.57, APIStatusError", "an error is JSON with error.message and error.type")
async def shape(target: Target) -> None:
    answer = await wrong(target)
    if answer.media_type != "application/json":
        raise Failed(f"Content-Type of an error is {answer.media_type or 'missing'}")
    error = error_of(answer)
    for name in ("message", "type"):
        if not isinstance(error.get(name), str) or not error[name]:
            raise Failed(f"error.{name} is no text: {answer.excerpt}")


@ERROR.check("should", "openai SDK 3.57, APIError", "an error has message, type, param and code, each a string or null")
async def keys(target: Target) -> None:
    answer = await wrong(target)
    error = error_of(answer)
    if missing := [name for name in KEYS if name not in error]:
        raise Failed(f"the error lacks {', '.join(missing)}: {answer.excerpt}")
    if odd := [name for name in KEYS if not isinstance(error[name], str | None)]:
        raise Failed(f"neither a string nor null: {', '.join(odd)}: {answer.excerpt}")


@ERROR.check("should", ERRORS, "error.param names the field that is wrong")
async def param(target: Target) -> None:
    for field, value in (("response_format", "no-such-format"), ("speed", 9), ("input", 5)):
        answer = await target.request_speech(**{field: value})
        found = error_of(answer).get("param")
        if found != field:
            raise Failed(f"param is {found!r} for a wrong {field}: {answer.excerpt}")


@ERROR.check("should", f"{ERRORS}; clients that retry by status", "a wrong field is a 400, as OpenAI's, and no 422")
async def is_400(target: Target) -> None:
    for fields in WRONG_FIELDS:
        expect_refusal(await target.request_speech(**fields), told(fields), 400)


@ERROR.check("should", f"{ERRORS}, model_not_found", "an unknown model is a 404 with the code model_not_found")
async def model_not_found(target: Target) -> None:
    answer = await target.request_speech(model="no-such-model-7f3a")
    expect_refusal(answer, "an unknown model", 404)
    if error_of(answer).get("code") != "model_not_found":
        raise Failed(f"the code of an unknown model is {error_of(answer).get('code')!r}")


@dataclass(frozen=True, slots=True)
class BadBody:
    """A body that is refused, and the words for it."""

    name: str
    source: str
    title: str
    content: bytes


BAD_BODIES = (
    BadBody("not_json", "RFC 8259, 2", "a body that is no JSON is refused", b"{'input': Hello}"),
    BadBody("not_an_object", PRACTICE, "a body that is JSON but no object is refused", b"[1, 2]"),
    BadBody("empty_body", PRACTICE, "an empty body is refused", b""),
    BadBody("not_utf8", "RFC 8259, 8.1", "a body that is not UTF-8 is refused", b'{"input": "Caf\xe9"}'),
    BadBody("deep", "RFC 8259, 9", "100,000 nested lists are refused", b"[" * DEEP),
)


def add_bad_body(bad: BadBody) -> None:
    async def run(target: Target) -> None:
        expect_refusal(await target.post(bad.content), bad.name.replace("_", " "))

    ERROR.add(bad.name, "must", bad.source, bad.title, run)


for _bad in BAD_BODIES:
    add_bad_body(_bad)


@ERROR.check("must", "RFC 8259, 6: JSON has no NaN", "NaN and Infinity as speed are refused")
async def not_a_number(target: Target) -> None:
    body = target.content(speed=1)
    for value in (b"NaN", b"Infinity", b"1e999"):
        answer = await target.post(body.replace(b'"speed": 1', b'"speed": ' + value))
        expect_refusal(answer, f"speed {value.decode()}")


@ERROR.check("must", "RFC 9110, 15.5.5", "an unknown path is a 404")
async def unknown_path(target: Target) -> None:
    expect_refusal(await target.get("/no/such/path"), "an unknown path", 404)


@ERROR.check("should", ERRORS, "the 404 of an unknown path has an error object too")
async def unknown_path_shape(target: Target) -> None:
    error_of(await target.get("/no/such/path"))


@ERROR.check("must", "RFC 9110, 15.5.6", "GET of the speech route is a 405 or a 404")
async def wrong_method(target: Target) -> None:
    expect_refusal(await target.get("/audio/speech"), "GET /audio/speech", 404, 405)


@ERROR.check("should", "RFC 9110, 15.5.6", "a 405 says in Allow what is taken")
async def allow(target: Target) -> None:
    answer = await target.get("/audio/speech")
    if answer.status != 405:
        raise Skipped(f"GET of the speech route is a {answer.status}")
    if "POST" not in answer.headers.get("allow", ""):
        raise Failed(f"Allow is {answer.headers.get('allow')!r} and names no POST")


@ERROR.check("should", "RFC 9110, 15.5.16; Fetch standard, simple requests", "JSON that is declared as text is refused")
async def content_type(target: Target) -> None:
    answer = await target.post(target.content(), "text/plain")
    expect_refusal(answer, "Content-Type text/plain", 400, 415)


@ERROR.check("must", "RFC 9110, 15.5.16", "a form instead of JSON is refused")
async def form(target: Target) -> None:
    answer = await target.post(b"input=Hello&voice=alloy&model=tts-1", "application/x-www-form-urlencoded")
    expect_refusal(answer, "a form")


@ERROR.check("must", "RFC 9110, 8.4", "a body that is no gzip, declared as gzip, is refused")
async def encoding(target: Target) -> None:
    expect_refusal(await target.post(b"\x1f\x8bnonsense", Content_Encoding="gzip"), "Content-Encoding: gzip")


@ERROR.check("must", "RFC 9110, 15.5.14", "a body of 5 MB is refused, by a status or by hanging up")
async def large(target: Target) -> None:
    try:
        answer = await target.request_speech(input="long " * (LARGE_BYTES // 5))
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        return  # the server may close the connection instead of reading all of it
    if answer.status == 200:
        raise Failed(f"5 MB of text are answered with {excerpt_unless_audio(answer)}")
    expect_refusal(answer, "5 MB of text")
