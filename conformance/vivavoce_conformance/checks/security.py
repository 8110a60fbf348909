"""Basics of security: keys, pages of other sites, names, paths, and bodies that cost much."""

import json

import httpx

from vivavoce_conformance.checks.errors import DEEP
from vivavoce_conformance.rules import ERRORS, PRACTICE, Group, Level
from vivavoce_conformance.target import SPEECH, Answer, Failed, Skipped, Target, error_of, expect_refusal, shown

SECURITY = Group("security", "keys, foreign pages, names, paths and costly bodies")
FOREIGN = "https://evil.example"
PATHS = ("../../../../etc/passwd", "/etc/passwd", "..\\..\\win.ini", "%2e%2e%2fetc%2fpasswd", "x\0y", "." * 5000)
SECRETS = (b"root:", b"[fonts]")
TRACES = (b"Traceback (most recent call last)", b'File "/', b"node_modules/", b".go:")
INJECTED = "Injected: yes"
OWASP_KEYS = f"{ERRORS}, 401; OWASP API Security 2023, API2"


def need_key(target: Target) -> str:
    if target.key is None:
        raise Skipped("no --key: the server may have none")
    return target.key


async def with_key(target: Target, key: str | None) -> Answer:
    """The answer to a request with another key; None for none at all."""
    keyless = Target(target.base, target.model, target.voice, key, target.timeout_s)
    async with keyless:
        return await keyless.request_speech()


def add_key_check(name: str, title: str, source: str = OWASP_KEYS) -> None:
    async def run(target: Target) -> None:
        key = need_key(target)
        wrong = {
            "no_key": None,
            "wrong_key": "sk-wrong-7f3a",
            "half_key": key[: len(key) // 2],
            "longer_key": key + "x",
        }
        expect_refusal(await with_key(target, wrong[name]), title, 401)

    SECURITY.add(name, "must", source, title, run)


add_key_check("no_key", "a request without a key is a 401")
add_key_check("wrong_key", "a request with an unknown key is a 401")
add_key_check("half_key", "half of a key is no key")
add_key_check("longer_key", "a key with a letter more is no key")


@SECURITY.check("must", OWASP_KEYS, "the lists of a server with keys need one too")
async def no_key_lists(target: Target) -> None:
    need_key(target)
    async with Target(target.base, target.model, target.voice, None, target.timeout_s) as keyless:
        expect_refusal(await keyless.get("/models"), "GET /models without a key", 401)


@SECURITY.check("should", "RFC 9110, 11.6.1", "a 401 has WWW-Authenticate and an error object")
async def authenticate(target: Target) -> None:
    need_key(target)
    answer = await with_key(target, None)
    if "www-authenticate" not in answer.headers:
        raise Failed("a 401 without WWW-Authenticate")
    error_of(answer)


@SECURITY.check("should", "OWASP Logging Cheat Sheet", "a wrong key is not repeated in the answer")
async def key_not_repeated(target: Target) -> None:
    need_key(target)
    wrong = "sk-wrong-7f3a91c2d4e5"
    if wrong.encode() in (await with_key(target, wrong)).body:
        raise Failed("the answer to a wrong key repeats it")


@SECURITY.check("should", "Fetch standard, CORS protocol", "pages of other sites cannot read a server that has no keys")
async def foreign_page_reads(target: Target) -> None:
    if target.key is not None:
        raise Skipped("the key shows that a request is meant")
    answer = await target.ask("GET", "/models", {"Origin": FOREIGN})
    allowed = answer.headers.get("access-control-allow-origin")
    if allowed in ("*", FOREIGN):
        raise Failed(f"Access-Control-Allow-Origin: {allowed}: every page that a user visits can use the server")


@SECURITY.check(
    "should", "OWASP CSRF Prevention Cheat Sheet; Fetch Metadata", "pages of other sites cannot make a server speak"
)
async def foreign_page_speaks(target: Target) -> None:
    if target.key is not None:
        raise Skipped("the key shows that a request is meant")
    headers = {"Origin": FOREIGN, "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}
    answer = await target.ask("POST", SPEECH, headers, target.content())
    expect_refusal(answer, "a form's request from a page of another site")


@SECURITY.check("should", "DNS rebinding: CWE-350", "a server on loopback without keys answers to its own names alone")
async def foreign_host(target: Target) -> None:
    if target.key is not None or not target.is_local:
        raise Skipped("the server has keys, or is not on this machine")
    answer = await target.ask("GET", "/models", {"Host": "evil.example"})
    expect_refusal(answer, "Host: evil.example")


async def raw_status(target: Target, request: bytes) -> int:
    """Status of the answer to a raw request; 0 for a connection that was closed without one."""
    received = await target.raw(request)
    if not received:
        return 0
    status = received[9:12]
    if not received.startswith(b"HTTP/1.") or not status.isdigit():
        raise Failed(f"what came back is no HTTP: {received[:60]!r}")
    return int(status)


def add_malformed(name: str, level: Level, source: str, title: str, *lines: str) -> None:
    """Adds a check that a request with these lines in its head is refused or hung up on."""

    async def run(target: Target) -> None:
        body = target.content()
        chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        content = chunk if any("chunked" in line for line in lines) else body
        head = target.head(
            SPEECH, *(line.format(len(body)) for line in lines), "Content-Type: application/json", "Connection: close"
        )
        status = await raw_status(target, head + content)
        if status and not 400 <= status < 500 and status != 501:
            raise Failed(f"status {status} instead of 400 for {', '.join(lines)}")

    SECURITY.add(name, level, source, title, run)


add_malformed(
    "two_lengths", "must", "RFC 9112, 6.3; request smuggling, CWE-444", "two lengths that differ are refused",
    "Content-Length: {}", "Content-Length: 5",
)  # fmt: skip
add_malformed(
    "length_and_chunks", "should", "RFC 9112, 6.1; request smuggling, CWE-444",
    "Content-Length beside Transfer-Encoding is refused",
    "Content-Length: {}", "Transfer-Encoding: chunked",
)  # fmt: skip
add_malformed(
    "bad_length", "must", "RFC 9112, 6.3", "a length that is no number is refused", "Content-Length: -5"
)  # fmt: skip
add_malformed(
    "two_hosts", "must", "RFC 9112, 3.2", "two Host headers are refused",
    "Host: localhost", "Host: evil.example", "Content-Length: {}",
)  # fmt: skip


@SECURITY.check("must", "CWE-22", "a voice that looks like a path is refused, and opens no file")
async def voice_path(target: Target) -> None:
    for path in PATHS:
        answer = await target.request_speech(voice=path)
        expect_refusal(answer, f"voice {shown(path)}")
        expect_no_secret(answer, f"voice {shown(path)}")


@SECURITY.check("must", "CWE-22", "paths of routes lead to no file")
async def route_path(target: Target) -> None:
    for path in (
        "/models/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/audio/voices/..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/etc/passwd",
    ):
        answer = await target.ask("GET", path)
        expect_refusal(answer, f"GET {path}")
        expect_no_secret(answer, f"GET {path}")


def expect_no_secret(answer: Answer, what: str) -> None:
    if any(secret in answer.body for secret in SECRETS):
        raise Failed(f"{what} shows a file of the machine")


@SECURITY.check("must", "CWE-113", "line breaks in names do not become headers of the answer")
async def header_injection(target: Target) -> None:
    broken = f"x\r\n{INJECTED}\r\n"
    answers = [
        await target.request_speech(model=broken),
        await target.request_speech(voice=broken),
        await target.request_speech(response_format=broken),
        await target.get("/models/x%0d%0aInjected:%20yes"),
    ]
    for answer in answers:
        if "injected" in answer.headers:
            raise Failed("a line break in a name became a header of the answer")


@SECURITY.check("must", "CWE-209", "errors show no stack traces")
async def no_traces(target: Target) -> None:
    bodies = (
        b"",
        b"{}",
        b"null",
        b"[" * DEEP,
        b'{"input": {"a": [1, 2, {}]}}',
        b'{"speed": 1e400}',
        b"\xff\xfe",
    )
    for body in bodies:
        answer = await target.post(body)
        if any(trace in answer.body for trace in TRACES):
            raise Failed(f"the answer to {body[:20]!r} shows a stack trace")


@SECURITY.check("must", "CWE-400", "a body with 100,000 unknown fields is refused, or served, in time")
async def many_fields(target: Target) -> None:
    body = {**target.body(), **{f"field_{n}": n for n in range(100_000)}}
    try:
        answer = await target.post(json.dumps(body).encode())
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        return
    if answer.status >= 500:
        raise Failed(f"status {answer.status} for 100,000 fields")
    if len(answer.body) > 100_000 and answer.status != 200:
        raise Failed(f"the refusal of 100,000 fields has {len(answer.body)} bytes")


@SECURITY.check("must", "RFC 6585, 5", "a header of 1 MB is refused or hung up on, and the next request is served")
async def huge_header(target: Target) -> None:
    try:
        answer = await target.ask("GET", "/models", {"X-Padding": "x" * 1_000_000})
        expect_refusal(answer, "a header of 1 MB")
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        pass
    if (await target.get("/models")).status != 200:
        raise Failed("after a header of 1 MB the list of models is no longer served")


@SECURITY.check("must", "CWE-117, CWE-113", "a client's X-Request-ID comes back harmless or not at all")
async def request_id(target: Target) -> None:
    answer = await target.ask("GET", "/models", {"X-Request-ID": "a" * 5000})
    if len(answer.headers.get("x-request-id", "")) > 1000:
        raise Failed("an X-Request-ID of 5000 letters is repeated in full")


@SECURITY.check("extension", f"CWE-918; {PRACTICE}", "recordings are not fetched from this machine or its files")
async def recordings(target: Target) -> None:
    field = target.dialect.recording
    if field is None:
        raise Skipped("OpenAI's API takes no recordings by URL; --server names a kind of server that does")
    for url in ("http://127.0.0.1:9/x.wav", "http://[::1]:9/x.wav", "file:///etc/passwd", "http://169.254.169.254/"):
        answer = await target.request_speech(**{field: url})
        expect_refusal(answer, f"{field} {url}")
        expect_no_secret(answer, f"{field} {url}")
