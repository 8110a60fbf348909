"""The server under test: its address, and requests to it that always end."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from vivavoce_conformance.dialects import Dialect
from vivavoce_conformance.sound import Samples, samples_of

Content = bytes | AsyncIterable[bytes]
SPEECH = "/audio/speech"
JSON = {"Content-Type": "application/json"}
TEXT = "The quick brown fox jumps over the lazy dog."
SHORT_TEXT = "Good morning."
MAX_BODY_BYTES = 64 * 2**20
"""Most bytes that are read of one answer: a server may never stop sending."""
BUSY_STATUSES = (429, 503)
BUSY_TRIES = 4
MAX_BUSY_WAIT_S = 10.0
CHECK_TIMEOUTS = 4
"""A check may take as long as this many requests at their limit."""
ABSENT = object()
"""Value of a field that is left out of a body."""


class Failed(Exception):
    """The server breaks the rule. The message says how."""


class Skipped(Exception):
    """The rule cannot be checked here. The message says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that has been read to its end."""

    status: int
    headers: httpx.Headers
    body: bytes

    @property
    def media_type(self) -> str:
        """The type without parameters, in lower case."""
        return str(self.headers.get("content-type", "")).partition(";")[0].strip().lower()

    def object(self) -> dict[str, Any]:
        """The body as a JSON object. Raises Failed for any other."""
        try:
            given = json.loads(self.body)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            raise Failed(f"status {self.status}, and the body is no JSON object: {self.excerpt}")
        return given

    @property
    def excerpt(self) -> str:
        """The beginning of the body, for messages."""
        return printable(self.body[:160].decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Reference:
    """Speech of TEXT as pcm. `repeats` is true if the server gave the same samples twice for the same `fields`."""

    samples: Samples
    fields: Mapping[str, Any]
    repeats: bool


@dataclass
class Target:
    """A server at `base`, the URL that OpenAI's clients take as base_url. Requests need `async with`.

    `timeout_s` bounds each request with its whole answer.
    """

    base: str
    model: str
    voice: str
    key: str | None = None
    timeout_s: float = 30.0
    dialect: Dialect = field(default_factory=Dialect)
    _http: httpx.AsyncClient | None = None
    _reference: Reference | Failed | None = None

    async def __aenter__(self) -> Self:
        limits = httpx.Limits(max_connections=32, max_keepalive_connections=4)
        plain = {"Accept-Encoding": "identity"}
        self._http = httpx.AsyncClient(timeout=self.timeout_s, limits=limits, headers=plain, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._http is not None
        await self._http.aclose()

    @property
    def url(self) -> httpx.URL:
        return httpx.URL(self.base)

    @property
    def is_local(self) -> bool:
        """True if the server is on this machine's loopback."""
        return self.url.host in ("localhost", "::1") or self.url.host.startswith("127.")

    @property
    def socket_base(self) -> str:
        return "ws" + self.base.removeprefix("http")

    def authorization(self, key: str | None) -> dict[str, str]:
        return {} if key is None else {"Authorization": f"Bearer {key}"}

    def body(self, **fields: object) -> dict[str, Any]:
        """A request for speech with these fields in place of the defaults; ABSENT leaves one out."""
        body = {"model": self.model, "input": SHORT_TEXT, "voice": self.voice, **fields}
        return {name: value for name, value in body.items() if value is not ABSENT}

    def content(self, **fields: object) -> bytes:
        """The body as bytes."""
        return json.dumps(self.body(**fields), ensure_ascii=False).encode()

    @asynccontextmanager
    async def open(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, content: Content | None = None
    ) -> AsyncIterator[httpx.Response]:
        """Yields an answer whose body has not been read yet. `headers` replace the defaults, the key among them."""
        assert self._http is not None
        headers = {**self.authorization(self.key), **(headers or {})}
        url = path if "://" in path else self.base + path
        async with self._http.stream(method, url, headers=headers, content=content) as response:
            yield response

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, content: Content | None = None
    ) -> Answer:
        """Sends a request and reads its answer. A busy server is asked again after its Retry-After."""
        for attempt in range(1, BUSY_TRIES + 1):
            async with asyncio.timeout(self.timeout_s), self.open(method, path, headers, content) as response:
                body = await read_body(response)
            if response.status_code not in BUSY_STATUSES or attempt == BUSY_TRIES:
                break
            await asyncio.sleep(_retry_after_s(response.headers))
        return Answer(response.status_code, response.headers, body)

    async def get(self, path: str) -> Answer:
        return await self.ask("GET", path)

    async def post(self, content: bytes, content_type: str = "application/json", **headers: str) -> Answer:
        """Sends bytes to the speech route. Underscores in names of headers stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.ask("POST", SPEECH, {"Content-Type": content_type, **named}, content)

    async def request_speech(self, **fields: object) -> Answer:
        """The answer to a request for speech, whatever it is."""
        return await self.post(self.content(**fields))

    def open_speech(self, **fields: object) -> AbstractAsyncContextManager[httpx.Response]:
        """The answer to a request for speech, not read yet."""
        return self.open("POST", SPEECH, JSON, self.content(**fields))

    async def speak(self, **fields: object) -> Answer:
        """Speech. Raises Failed for any other answer."""
        answer = await self.request_speech(**fields)
        expect_speech(answer, told(fields))
        return answer

    async def reference(self) -> Reference:
        """Speech of TEXT, the same for all checks. Raises Failed without pcm."""
        if self._reference is None:
            try:
                self._reference = await self._speak_reference()
            except Failed as error:
                self._reference = Failed(f"there is no pcm to compare with: {error}")
        if isinstance(self._reference, Failed):
            raise Failed(str(self._reference))
        return self._reference

    async def _speak_reference(self) -> Reference:
        fields: dict[str, Any] = {"input": TEXT}
        seed = self.dialect.seed
        if seed and (await self.request_speech(response_format="pcm", **fields, **{seed: 7})).status == 200:
            fields[seed] = 7
        first = samples_of((await self.speak(response_format="pcm", **fields)).body)
        second = samples_of((await self.speak(response_format="pcm", **fields)).body)
        if not first:
            raise Failed("a pcm without samples")
        return Reference(first, fields, first == second)

    async def raw(self, request: bytes) -> bytes:
        """Sends bytes over a connection of its own. Returns all that came until the server closed it or fell silent.

        Raises OSError if there is no connection.
        """
        reader, writer = await self.connect()
        received = bytearray()
        try:
            async with asyncio.timeout(min(self.timeout_s, 5.0)):
                writer.write(request)
                while len(received) < MAX_BODY_BYTES and (piece := await reader.read(2**16)):
                    received += piece
        except (TimeoutError, ConnectionError):
            pass  # what has come by then is the answer
        finally:
            writer.close()
        return bytes(received)

    async def connect(self, limit_bytes: int = 2**16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection. Raises OSError. The reader stops reading beyond twice the limit that nobody has taken."""
        url = self.url
        context = ssl.create_default_context() if url.scheme == "https" else None
        port = url.port or (443 if context else 80)
        async with asyncio.timeout(self.timeout_s):
            return await asyncio.open_connection(url.host, port, ssl=context, limit=limit_bytes)

    def head(self, path: str, *lines: str, method: str = "POST") -> bytes:
        """The head of a raw request to a path of the API, with these lines and the key."""
        url = self.url
        host = url.netloc.decode()
        own = [f"Host: {host}"] if not any(line.lower().startswith("host:") for line in lines) else []
        key = [f"{name}: {value}" for name, value in self.authorization(self.key).items()]
        return "\r\n".join([f"{method} {url.path.rstrip('/')}{path} HTTP/1.1", *own, *key, *lines, "", ""]).encode()


async def read_body(response: httpx.Response) -> bytes:
    """Reads a body. Raises Failed for one that is larger than any speech that was asked for."""
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise Failed(f"the answer is longer than {MAX_BODY_BYTES >> 20} MiB")
    return bytes(body)


def _retry_after_s(headers: httpx.Headers) -> float:
    value = headers.get("retry-after", "")
    return min(float(value), MAX_BUSY_WAIT_S) if value.isascii() and value.isdigit() else 1.0


def told(fields: Mapping[str, Any]) -> str:
    """Fields of a request as they are named in messages."""
    return ", ".join(f"{name} {shown(value)}" for name, value in fields.items()) or "a plain request"


def shown(value: object) -> str:
    """A value as JSON, shortened."""
    text = "left out" if value is ABSENT else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:40]}… ({len(text)} characters)"


def printable(text: str) -> str:
    """Text of a server in one line that can be shown in a terminal and written into XML."""
    return "".join(char if char.isprintable() else " " for char in text).strip()


def expect_speech(answer: Answer, what: str) -> None:
    """Raises Failed unless the answer is speech."""
    if answer.status != 200:
        raise Failed(f"{what}: status {answer.status} instead of 200: {answer.excerpt}")
    if not answer.body:
        raise Failed(f"{what}: status 200 with an empty body")


def expect_refusal(answer: Answer, what: str, *statuses: int) -> None:
    """Raises Failed unless the answer is an error of the client, of one of these statuses if any are given."""
    wanted = " or ".join(map(str, statuses)) or "4xx"
    if not (answer.status in statuses if statuses else 400 <= answer.status < 500):
        raise Failed(f"{what}: status {answer.status} instead of {wanted}: {excerpt_unless_audio(answer)}")


def excerpt_unless_audio(answer: Answer) -> str:
    is_audio = answer.media_type.startswith("audio/") or answer.media_type == "application/octet-stream"
    return f"{len(answer.body)} bytes of {answer.media_type}" if is_audio else answer.excerpt


def error_of(answer: Answer) -> dict[str, Any]:
    """The error object of an answer. Raises Failed without one."""
    error = answer.object().get("error")
    if not isinstance(error, dict):
        raise Failed(f"status {answer.status} without an error object: {answer.excerpt}")
    return error


def now() -> float:
    return time.perf_counter()
