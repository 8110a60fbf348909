"""Headers and lengths of answers."""

from vivavoce_conformance.rules import Group
from vivavoce_conformance.target import Failed, Skipped, Target, expect_speech

HEADERS = Group("headers", "headers and lengths of answers")
REQUEST_ID = "x-request-id"
SOURCE_OF_ID = "OpenAI API reference, Debugging requests; openai SDK 3.57, _request_id"


@HEADERS.check("should", SOURCE_OF_ID, "speech, lists and errors have an x-request-id")
async def request_id(target: Target) -> None:
    answers = {
        "speech": await target.request_speech(),
        "the list of models": await target.get("/models"),
        "an error": await target.request_speech(response_format="no-such-format"),
    }
    if without := [name for name, answer in answers.items() if not answer.headers.get(REQUEST_ID)]:
        raise Failed(f"no x-request-id on {', '.join(without)}")


@HEADERS.check("should", SOURCE_OF_ID, "every request has an id of its own")
async def request_id_is_unique(target: Target) -> None:
    ids = [(await target.get("/models")).headers.get(REQUEST_ID) for _ in range(3)]
    if None in ids:
        raise Skipped("there is no x-request-id")
    if len(set(ids)) < len(ids):
        raise Failed(f"three requests have the ids {ids}")


@HEADERS.check("must", "RFC 9112, 6.3", "an answer's end is told: by its length, by chunks, or by the connection's end")
async def framing(target: Target) -> None:
    for path in ("/models", "/no/such/path"):
        received = await target.raw(target.head(path, "Connection: close", method="GET"))
        head, separator, body = received.partition(b"\r\n\r\n")
        if not separator:
            raise Failed(f"GET {path}: no head of an answer came, but {received[:60]!r}")
        lines = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
        length = lines.get(b"content-length", b"").strip()
        if b"transfer-encoding" in lines:
            if length:
                raise Failed(f"GET {path}: both Content-Length and Transfer-Encoding")
            if not body.endswith(b"0\r\n\r\n"):
                raise Failed(f"GET {path}: the chunks have no end")
        elif length and length != str(len(body)).encode():
            raise Failed(
                f"GET {path}: Content-Length is {length.decode('ascii', 'replace')}, and {len(body)} bytes came"
            )


@HEADERS.check("should", "RFC 9112, 9.3", "a connection serves several requests")
async def keep_alive(target: Target) -> None:
    length = len(b"{}")
    first = target.head("/audio/speech", "Content-Type: application/json", f"Content-Length: {length}") + b"{}"
    received = await target.raw(first + target.head("/models", "Connection: close", method="GET"))
    if received.count(b"HTTP/1.1 ") < 2:
        raise Failed("the connection ended behind the first answer, an error of the client")


@HEADERS.check(
    "should", "RFC 9110, 9.1: GET and HEAD must be supported", "HEAD of the list of models is answered as GET"
)
async def head(target: Target) -> None:
    wanted = (await target.get("/models")).status
    answer = await target.ask("HEAD", "/models")
    if answer.status != wanted or answer.body:
        raise Failed(f"HEAD /models: status {answer.status} with {len(answer.body)} bytes, GET has {wanted}")


@HEADERS.check("should", "RFC 9111, 5.2.2.5", "nothing stores speech unless the server says so")
async def no_public_cache(target: Target) -> None:
    answer = await target.request_speech()
    expect_speech(answer, "a plain request")
    if "public" in answer.headers.get("cache-control", "").lower():
        raise Failed(f"Cache-Control: {answer.headers['cache-control']} on somebody's speech")
