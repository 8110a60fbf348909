"""A speech server that keeps every rule of the conformance suite, or breaks one of them, chosen by the check's id.

It speaks a tone. It is a plain ASGI app behind `Front`, which breaks what an ASGI server keeps by itself.
"""

import asyncio
import base64
import io
import json
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import av
import numpy as np
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from vivavoce_conformance.checks.requests import VOICES

from tests.support.faulty_sockets import FaultySockets
from tests.support.waiting import HUNG_S, wait_until

RATE = 24_000
CHAR_S = 0.01
KEY = "sk-right-0123456789"
MODELS = ("tone", "tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15")
TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
CODECS = {"mp3": ("libmp3lame", "mp3"), "opus": ("libopus", "ogg"), "aac": ("aac", "adts"), "flac": ("flac", "flac")}
LONG_CHARS = 300
PIECES, PACE_S = 30, 0.03
"""Pieces of a long speech, and the time that the making of each takes."""
FIELDS = (
    "model",
    "input",
    "voice",
    "response_format",
    "speed",
    "stream_format",
    "instructions",
    "seed",
    "stream",
    "ref_audio",
)
MAX_BODY_BYTES = 4_000_000


class Problem(Exception):
    """An error of the client."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


@lru_cache(maxsize=64)
def tone(chars: int, speed: float, seed: int) -> bytes:
    """A sound whose pitch rises and whose loudness varies, so that every moment is told from every other."""
    time = np.arange(int(chars * CHAR_S / speed * RATE)) / RATE
    pitch = 150 + 3 * (seed % 50) + 80 * time
    wave = 9000 * np.sin(2 * np.pi * pitch * time) * (0.6 + 0.4 * np.sin(2 * np.pi * 5 * time))
    return wave.astype("<i2").tobytes()


@lru_cache(maxsize=64)
def encoded(pcm: bytes, name: str) -> bytes:
    """The samples as a file of one of the formats with a codec."""
    codec, container_name = CODECS[name]
    file = io.BytesIO()
    with av.open(file, "w", format=container_name) as container:
        stream = container.add_stream(codec, rate=RATE)
        assert isinstance(stream, av.AudioStream)
        stream.layout = "mono"
        samples = np.frombuffer(pcm, "<i2").reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = RATE
        for part in (frame, None):
            container.mux(stream.encode(part))
    return file.getvalue()


def wave(pcm: bytes, rate: int = RATE, surplus: int = 0) -> bytes:
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16)
    size = len(pcm) + surplus
    return b"RIFF" + struct.pack("<I", 36 + size) + b"WAVE" + form + b"data" + struct.pack("<I", size) + pcm


class FaultyServer:
    """The ASGI app. `fault` is the id of the check whose rule it breaks; None breaks none."""

    def __init__(self, fault: str | None = None, key: str | None = None) -> None:
        self.fault, self.key = fault, key
        self.sockets = FaultySockets(self)
        self.requests = 0
        self.long_running = 0
        self.stuck = False
        """Holds short texts up, until one of their clients has given up."""

    def breaks(self, *ids: str) -> bool:
        return self.fault in ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self.sockets(scope, receive, send)
        elif scope["type"] == "http":
            request = Request(scope, receive)
            response = await self.answer(request)
            await response(scope, receive, send)

    async def answer(self, request: Request) -> Response:
        self.requests += 1
        try:
            self.check_door(request)
            response = await self.route(request)
        except Problem as problem:
            response = self.error(problem, request)
        except ClientDisconnect:
            response = Response(status_code=400)
        given = request.headers.get("x-request-id", "")
        if self.breaks("headers.request_id_is_unique"):
            given = "always-the-same"
        if not self.breaks("headers.request_id"):
            keeps = given and (len(given) <= 128 or self.breaks("security.request_id"))
            response.headers["x-request-id"] = given if keeps else f"req_{self.requests}"
        return response

    def check_door(self, request: Request) -> None:
        headers = request.headers
        host = headers.get("host", "").partition(":")[0]
        if host not in ("127.0.0.1", "localhost") and not self.breaks("security.foreign_host"):
            raise Problem(403, "not a name of this server", None, "host_not_allowed")
        if (
            "transfer-encoding" in headers
            and "content-length" in headers
            and not self.breaks("security.length_and_chunks")
        ):
            raise Problem(400, "two lengths")
        if self.key is None:
            foreign = headers.get("sec-fetch-site") == "cross-site" and request.method == "POST"
            if foreign and not self.breaks("security.foreign_page_speaks"):
                raise Problem(403, "pages of other sites may not speak here", None, "origin_not_allowed")
            return
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if given != self.key and not self.lets_in(given, request):
            told = given if self.breaks("security.key_not_repeated") else given[:3]
            raise Problem(401, f"the key {told} is not known", None, "invalid_api_key")

    def lets_in(self, given: str, request: Request) -> bool:
        assert self.key is not None
        return {
            "security.no_key": not given and request.method == "POST",
            "security.no_key_lists": not given and request.method == "GET",
            "security.wrong_key": "wrong" in given,
            "security.half_key": bool(given) and self.key.startswith(given),
            "security.longer_key": given.startswith(self.key),
        }.get(self.fault or "", False)

    def error(self, problem: Problem, request: Request) -> Response:
        status, message = problem.status, str(problem)
        if self.breaks("errors.is_400") and status == 400:
            status = 422
        body: dict[str, Any] = {
            "message": message,
            "type": "invalid_request_error",
            "param": None if self.breaks("errors.param") else problem.param,
            "code": problem.code,
        }
        if self.breaks("errors.keys"):
            del body["param"]
        if self.breaks("errors.shape") and status == 400:
            return PlainTextResponse(message, status)
        if self.breaks("errors.unknown_path_shape") and problem.code == "not_found":
            return JSONResponse({"detail": "Not Found"}, status)
        if self.breaks("security.no_traces") and problem.code == "invalid_json":
            body["message"] = 'Traceback (most recent call last)\n  File "/app/server.py", line 1'
        response = JSONResponse({"error": body}, status)
        if status == 401 and not self.breaks("security.authenticate"):
            response.headers["www-authenticate"] = "Bearer"
        if status == 405 and not self.breaks("errors.allow"):
            response.headers["allow"] = "POST"
        if self.breaks("security.header_injection") and "Injected: yes" in message:
            response.headers["injected"] = "yes"
        return response

    async def route(self, request: Request) -> Response:
        path, method = request.url.path, request.method
        if self.breaks("security.route_path") and "etc/passwd" in unquote(path):
            return PlainTextResponse("root:x:0:0:")
        if path == "/v1/audio/speech":
            return await self.speech(request)
        if method == "HEAD" and self.breaks("headers.head"):
            raise Problem(405, "no HEAD", None, "method_not_allowed")
        if method == "POST" and path == "/v1/audio/voices":
            if self.breaks("voices.create_empty"):
                return JSONResponse({}, 500)
            raise Problem(400, "name is missing", "name")
        if method == "DELETE" and path.startswith("/v1/audio/voices/"):
            if self.breaks("voices.delete_unknown"):
                return JSONResponse({"deleted": True})
            raise Problem(404, "no such voice", None, "voice_not_found")
        if method in ("GET", "HEAD"):
            return self.listing(path, request)
        raise Problem(404, "nothing here", None, "not_found")

    def listing(self, path: str, request: Request) -> Response:
        headers = {"access-control-allow-origin": "*"} if self.breaks("security.foreign_page_reads") else {}
        if path == "/v1/models":
            data: list[Any] = [self.model(name) for name in MODELS]
            if self.breaks("models.listing"):
                data = [{"name": "tone"}]
            return JSONResponse({"object": "list", "data": data}, headers=headers)
        if path.startswith("/v1/models/"):
            name = path.removeprefix("/v1/models/")
            lost = (self.breaks("models.retrieve") and name == "tone") or (
                self.breaks("models.retrieve_used") and name == "gpt-4o-mini-tts"
            )
            if (name in MODELS and not lost) or (self.breaks("models.retrieve_unknown") and "no-such" in name):
                return JSONResponse(self.model(name))
            raise Problem(404, f"no model {name}", "model", "model_not_found")
        if path == "/v1/audio/voices":
            voices = [{"id": name, "name": name} for name in VOICES]
            return JSONResponse({"voices": [{}] if self.breaks("voices.list_voices") else voices})
        if path == "/v1/audio/voice_consents":
            limit = request.query_params.get("limit", "20")
            if not (limit.isdigit() and 1 <= int(limit) <= 100) and not self.breaks("voices.consents_limit"):
                raise Problem(400, "limit is 1 to 100", "limit")
            page: dict[str, Any] = {"object": "list", "data": [], "has_more": False}
            if self.breaks("voices.list_consents"):
                del page["has_more"]
            return JSONResponse(page)
        status = 200 if self.breaks("errors.unknown_path") and path == "/v1/no/such/path" else 404
        if status == 200:
            return JSONResponse({"error": {"message": "not found"}})
        raise Problem(404, "nothing here", None, "not_found")

    def model(self, name: str) -> dict[str, Any]:
        shown = {"id": name, "object": "model", "created": 1, "owned_by": "tests"}
        return {"id": name} if self.breaks("models.fields") else shown

    async def speech(self, request: Request) -> Response:
        if request.method != "POST":
            if self.breaks("errors.wrong_method"):
                return JSONResponse({})
            raise Problem(405, "POST alone", None, "method_not_allowed")
        body = await self.body_of(request)
        self.check_fields(body)
        text = body["input"]
        fault = self.fault or ""
        if fault == "requests.at_once" and text.startswith("Good morning. ") and text != "Good morning. 0.":
            raise Problem(500, "busy", None, "bug")
        while self.stuck and len(text) < LONG_CHARS:
            await asyncio.sleep(0.01)
            if await request.is_disconnected():
                self.stuck = False
        speed = 1.0 if fault == "requests.speed" else float(body.get("speed") or 1.0)
        seed = 0 if fault == "requests.seed_varies" else int(body.get("seed") or 0)
        if fault == "requests.seed" and seed:
            seed += self.requests
        name = body.get("response_format") or ("wav" if fault == "formats.default" else "mp3")
        # A long text is short speech that comes slowly: to encode more would take longer than its pieces do.
        file = self.file_of(tone(min(len(text), LONG_CHARS), speed, seed), name)
        is_events = body.get("stream_format") == "sse"
        media_type = self.media_type(name, is_events)
        if body.get("stream") is False:
            whole = b"RIFF\0\0\0\0" + file[8:] if fault == "formats.wav_whole" else file
            return Response(whole, media_type=media_type)
        headers = {"cache-control": "public, max-age=9"} if fault == "headers.no_public_cache" else {}
        if fault == "streaming.no_length" and not is_events and len(text) < LONG_CHARS:
            headers["content-length"] = str(len(file))
        slow_rule = f"streaming.{'sse_early' if is_events else name}"
        pieces = self.pieces(text, file, name, is_late=self.breaks(slow_rule))
        return StreamingResponse(self.events(pieces) if is_events else pieces, 200, headers, media_type)

    async def body_of(self, request: Request) -> dict[str, Any]:
        media_type = request.headers.get("content-type", "").partition(";")[0]
        if "charset" in request.headers.get("content-type", "") and self.breaks("requests.charset"):
            raise Problem(415, "no charsets")
        if self.breaks("requests.chunked_request") and request.headers.get("transfer-encoding"):
            raise Problem(411, "a length is needed")
        if self.breaks("requests.client_headers") and "openai-organization" in request.headers:
            raise Problem(400, "an unknown header")
        if self.breaks("requests.empty_bearer") and request.headers.get("authorization") == "Bearer":
            raise Problem(401, "no key")
        if "expect" in request.headers and self.breaks("cancelling.leaving_early"):
            self.stuck = True
        content = await request.body()
        if len(content) > MAX_BODY_BYTES:
            if self.breaks("errors.large"):
                raise Problem(500, "out of memory", None, "bug")
            raise Problem(413, "the body is too large")
        if media_type == "application/x-www-form-urlencoded":
            if self.breaks("errors.form"):
                raise Problem(500, "no JSON", None, "bug")
            raise Problem(415, "the body is no JSON")
        if media_type != "application/json" and not self.breaks("errors.content_type", "security.foreign_page_speaks"):
            raise Problem(415, "the body is no JSON")
        if request.headers.get("content-encoding"):
            if self.breaks("errors.encoding"):
                raise Problem(500, "no JSON", None, "bug")
            raise Problem(415, "bodies are sent as they are")
        return self.parsed(content)

    def parsed(self, content: bytes) -> dict[str, Any]:
        planted = {
            "errors.not_json": content.startswith(b"{'"),
            "errors.not_an_object": content == b"[1, 2]",
            "errors.empty_body": not content,
            "errors.not_utf8": b"Caf\xe9" in content,
            "errors.deep": content.startswith(b"[["),
            "errors.not_a_number": b"NaN" in content,
            "requests.lone_surrogate": b"\\ud800" in content,
        }
        if planted.get(self.fault or "", False):
            raise Problem(500, "the server has a fault", None, "bug")
        if self.breaks("requests.escapes") and b"\\u" in content and b"\\ud800" not in content and b"smile" in content:
            raise Problem(400, "no escapes")
        try:
            body = json.loads(content.decode("utf-8"), parse_constant=lambda name: 1 / 0)
        except (ValueError, RecursionError, ZeroDivisionError):
            raise Problem(400, "the body is no JSON", None, "invalid_json") from None
        if not isinstance(body, dict):
            raise Problem(400, "the body is no object", None, "invalid_json")
        return body

    def check_fields(self, body: dict[str, Any]) -> None:
        """Raises a Problem for the first field that is wrong, unless its rule is the fault."""
        if len(body) > 1000 and self.breaks("security.many_fields"):
            raise Problem(500, "too many fields", None, "bug")
        unknown = next((name for name in body if name not in FIELDS), None)
        if unknown:
            raise Problem(400, f"unknown field {unknown}", unknown)
        self.check_taken(body)
        recording = body.get("ref_audio")
        if recording and not self.breaks("security.recordings"):
            raise Problem(400, "no recordings", "ref_audio")
        self.check_names(body)
        text, speed = body.get("input"), body.get("speed")
        if "input" not in body:
            self.refuse("requests.input_missing", "input", body, "tone")
        elif not isinstance(text, str):
            self.refuse("requests.input_type", "input", body, "tone")
        elif not text:
            self.refuse("requests.input_empty", "input", body, "tone")
        elif len(text) > 4096:
            self.refuse("requests.input_too_long", "input", body, text)
        if speed is not None and type(speed) not in (int, float):
            self.refuse("requests.speed_type", "speed", body, 1.0)
        elif speed is not None and not 0.25 <= speed <= 4:
            self.refuse("requests.speed_range", "speed", body, 1.0)
        if "seed" in body and type(body["seed"]) is not int:
            self.refuse("requests.seed_type", "seed", body, 1)

    def refuse(self, rule: str, field: str, body: dict[str, Any], instead: object) -> None:
        """Raises a Problem, or with the rule as fault replaces the value."""
        if not self.breaks(rule):
            raise Problem(400, f"{field} is wrong: {str(body.get(field))[:80]}", field)
        body[field] = instead

    def check_taken(self, body: dict[str, Any]) -> None:
        """The planted faults that refuse what should be taken."""
        refused = {
            "requests.plain": self.requests == 1,
            "requests.instructions": bool(body.get("instructions")),
            "requests.instructions_empty": body.get("instructions") == "",
            "requests.nulls": None in (body.get("speed", 1), body.get("response_format", 1)),
            "requests.voices": body.get("voice") == "verse",
            "requests.models": "2025" in str(body.get("model")),
            "requests.voice_object": isinstance(body.get("voice"), dict) and isinstance(body["voice"].get("id"), str),
            "requests.stream_format_audio": body.get("stream_format") == "audio",
            "requests.speed_limits": body.get("speed") == 0.25,
            "requests.input_longest": len(str(body.get("input"))) == 4096,
            "requests.unicode": "quoted" in str(body.get("input")),
            "streaming.sse": body.get("stream_format") == "sse",
        }
        if refused.get(self.fault or "", False):
            raise Problem(400, "this is not taken here")

    def check_names(self, body: dict[str, Any]) -> None:
        voice, model = body.get("voice"), body.get("model")
        if self.breaks("security.voice_path") and isinstance(voice, str) and "etc/passwd" in voice:
            raise Problem(400, "root:x:0:0:", "voice")
        if isinstance(voice, dict):
            voice = voice.get("id")
        if not isinstance(voice, str):
            self.refuse("requests.voice_type", "voice", body, "alloy")
        elif voice not in VOICES:
            self.refuse("requests.voice_unknown", "voice", body, "alloy")
        if not isinstance(model, str):
            self.refuse("requests.model_type", "model", body, "tone")
        elif model not in MODELS and not self.breaks("requests.model_unknown"):
            known = not self.breaks("errors.model_not_found")
            raise Problem(
                404 if known else 400, f"no model {model[:80]}", "model", "model_not_found" if known else "no"
            )
        for field, known_values in (("response_format", TYPES), ("stream_format", ("audio", "sse"))):
            value = body.get(field)
            if value is not None and not isinstance(value, str):
                self.refuse(f"requests.{field}_type", field, body, None)
            elif value is not None and value not in known_values:
                self.refuse(f"requests.{field}_unknown", field, body, None)

    def media_type(self, name: str, is_events: bool) -> str:
        if is_events:
            return "text/event-stream"
        if self.breaks(f"formats.{name}_type"):
            return "text/html" if name == "pcm" else "application/octet-stream"
        return TYPES[name]

    def file_of(self, pcm: bytes, name: str) -> bytes:
        if self.breaks(f"formats.{name}_delay"):
            pcm = bytes(2 * int(0.1 * RATE)) + pcm
        if self.breaks(f"formats.{name}") and name != "pcm":
            pcm = pcm[: len(pcm) * 2 // 3 // 2 * 2]
        if name == "wav":
            return wave(
                pcm, 16_000 if self.breaks("formats.pcm_rate") else RATE, 1000 * self.breaks("formats.wav_sizes")
            )
        if name == "pcm":
            return pcm + bytes(self.breaks("formats.pcm"))
        return encoded(pcm, name)

    async def pieces(self, text: str, file: bytes, name: str, is_late: bool) -> AsyncIterator[bytes]:
        """The file in pieces. Those of a long text take their time. If `is_late`, all are sent with the last."""
        if len(text) < LONG_CHARS:
            yield file
            return
        self.long_running += 1
        if self.long_running > 3 and self.breaks("cancelling.leaving"):
            self.stuck = True
        if name == "wav" and self.breaks("cancelling.not_reading"):
            self.stuck = True
        try:
            step = len(file) // PIECES + 1
            made = [file[start : start + step] for start in range(0, len(file), step)]
            if is_late:
                await asyncio.sleep(PIECES * PACE_S)
                made = [file]
            for piece in made:
                await asyncio.sleep(PACE_S)
                yield piece
        finally:
            self.long_running -= 1

    async def events(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            audio = base64.b64encode(piece[: len(piece) // 2] if self.breaks("streaming.sse_audio") else piece)
            yield self.event("speech.audio.delta", audio=audio.decode())
        usage = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 4 if self.breaks("streaming.sse_usage") else 3}
        kind = "speech.audio.end" if self.breaks("streaming.sse_types") else "speech.audio.done"
        yield self.event(kind, usage=usage)

    def event(self, kind: str, **fields: object) -> bytes:
        name = "audio" if self.breaks("streaming.sse_names") else kind
        return f"event: {name}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


CANNED_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
LONG_BODY = (
    b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}{}{}"
)
NOT_FOUND = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
)


def canned(fault: str | None, head: bytes) -> bytes | None:
    """The answer of a front with this fault to a request that begins so; None to pass it on."""
    low = head.lower()
    answers: dict[str | None, tuple[bool, bytes]] = {
        "security.two_lengths": (low.count(b"\r\ncontent-length:") > 1, CANNED_HEAD + b"ok"),
        "security.bad_length": (b"content-length: -5" in low, CANNED_HEAD + b"ok"),
        "security.two_hosts": (low.count(b"\r\nhost:") > 1, CANNED_HEAD + b"ok"),
        "security.huge_header": (b"x-padding" in low, CANNED_HEAD + b"ok"),
        "headers.framing": (low.startswith(b"get /v1/no/such") and b"connection: close" in low, LONG_BODY),
        "headers.keep_alive": (b"content-length: 2\r\n" in low, NOT_FOUND),
    }
    applies, answer = answers.get(fault, (False, b""))
    return answer if applies else None


class Front:
    """Passes connections on to a port, except those whose request has the fault's answer."""

    def __init__(self, fault: str | None, port: int) -> None:
        self._fault, self._port = fault, port

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            answer = canned(self._fault, head)
            if answer is not None:
                writer.write(answer)
                await writer.drain()
                return
            behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                behind_writer.write(head)
                await asyncio.gather(self._pass_on(reader, behind_writer, writer), _pump(behind_reader, writer))
            finally:
                behind_writer.close()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, behind: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        """Passes on what the client sends. Its later requests on the same connection have the fault too."""
        while piece := await reader.read(2**16):
            if answer := canned(self._fault, piece):
                client.write(answer)
                await client.drain()
                break
            behind.write(piece)
            await behind.drain()
        behind.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(2**16):
        writer.write(piece)
        await writer.drain()
    writer.close()


@contextmanager
def faulty_server(fault: str | None = None, key: str | None = None) -> Iterator[str]:
    """Yields the URL of a server with one planted fault, on a thread of this process."""
    config = uvicorn.Config(
        FaultyServer(fault, key),
        port=0,
        http="h11",
        ws="websockets-sansio",
        lifespan="off",
        log_level="critical",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        with served(Front(fault, port)) as url:
            yield url
    finally:
        server.should_exit = True
        thread.join(HUNG_S)
        assert not thread.is_alive(), "the server did not stop"


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def served(handler: Handler) -> Iterator[str]:
    """Yields the URL of a bare TCP server, on a thread of this process."""
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    ports: list[int] = []

    async def serve() -> None:
        server = await asyncio.start_server(handler, "127.0.0.1", 0, limit=2**22)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await stop.wait()
        server.close()

    stop = asyncio.Event()

    def run() -> None:
        loop.run_until_complete(serve())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(HUNG_S)
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(HUNG_S)
        assert not thread.is_alive(), "the server did not stop"
