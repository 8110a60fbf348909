"""The lines of the log about requests, connections, utterances and items: each says who asked for what, and the end."""

import asyncio
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from vivavoce_server import ServerConfig
from vivavoce_server.request_lines import FIELDS
from websockets.asyncio.client import connect

from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import close_code_of, dial
from tests.support.realtime_socket import dial_realtime
from tests.support.waiting import wait_until
from tests.support.wire import exchange, handshake
from tests.support.wyoming_client import dial_wyoming
from tests.support.wyoming_server import wyoming_server

SPEECH = "/v1/audio/speech"
BODY = {"input": "Hello there.", "voice": "heart", "response_format": "wav"}
ME = {"User-Agent": "a client/1 (x)"}

Line = Mapping[str, Any]


OPERATIONS = Path(__file__).parents[2] / "deploy/OPERATIONS.md"


def test_the_fields_are_documented_in_their_order() -> None:
    section = OPERATIONS.read_text(encoding="utf-8").partition("\n## Logs\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert tuple(re.findall(r"`(\w+)`", " ".join(rows))) == FIELDS


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "vivavoce_server"):
        yield


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[Line]:
    found = [record.__dict__["fields"] for record in caplog.records if record.name.endswith("request_lines")]
    assert all(set(line) <= set(FIELDS) for line in found)
    return [line for line in found if line["event"] == event]


def line_of(caplog: pytest.LogCaptureFixture, event: str = "request") -> Line:
    """The only line of this kind, which may be written behind the answer."""
    wait_until(lambda: bool(lines(caplog, event)))
    [line] = lines(caplog, event)
    return line


def test_speech(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    answer = httpx.post(f"{server.url}{SPEECH}?secret=1", json={**BODY, "model": "tts-1"}, headers=ME)
    line = dict(line_of(caplog))
    seconds = [line.pop(name) for name in ("first_audio_s", "queue_wait_s", "duration_s")]
    frames = line.pop("frames")
    assert answer.status_code == 200
    assert line == {
        "event": "request",
        "method": "POST",
        "path": SPEECH,
        "status": 200,
        "outcome": "completed",
        "model": "fake",
        "voice": "heart",
        "format": "wav",
        "chars": 12,
        "audio_s": pytest.approx(frames * 0.08),
        "client": "127.0.0.1",
        "user_agent": "a client/1 (x)",
    }
    assert 0 <= seconds[1] <= seconds[2]
    assert 0 < seconds[0] <= seconds[2]


@pytest.mark.parametrize("stream", [True, False])
def test_the_seconds_are_those_of_the_file(server: LiveServer, stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    httpx.post(server.url + SPEECH, json={**BODY, "speed": 2, "stream": stream})
    line = line_of(caplog)
    assert line["audio_s"] == pytest.approx(line["frames"] * 0.08 / 2)


@pytest.mark.parametrize(
    ("body", "status", "fields"),
    [
        ({**BODY, "speed": 99}, 400, {"code": "invalid_value", "param": "speed", "voice": "heart", "chars": 12}),
        ({**BODY, "voice": "nobody"}, 400, {"code": "voice_not_found", "param": "voice", "voice": "nobody"}),
        ({**BODY, "voice": {"id": "nobody"}}, 400, {"param": "voice", "voice": "nobody"}),
        ({**BODY, "model": "other"}, 404, {"code": "model_not_found", "param": "model", "model": "other"}),
        ({**BODY, "colour": "red"}, 400, {"code": "unknown_parameter", "param": "colour"}),
        ({**BODY, "The whole text, as a name": 1}, 400, {"code": "unknown_parameter"}),
        ({"voice": "heart"}, 400, {"code": "missing_required_parameter", "param": "input"}),
        ({**BODY, "input": "a" * 5000}, 400, {"code": "string_above_max_length", "param": "input", "chars": 5000}),
        ([], 400, {"code": "invalid_value"}),
    ],
)
def test_a_refusal_says_why(
    server: LiveServer, body: object, status: int, fields: Line, caplog: pytest.LogCaptureFixture
) -> None:
    httpx.post(server.url + SPEECH, json=body)
    line = line_of(caplog)
    assert line.items() >= {"status": status, "outcome": "rejected", **fields}.items()
    if "param" not in fields:
        assert "param" not in line


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("PUT", SPEECH, 405, "method_not_allowed"),
        ("POST", "/v1/text-to-speech/nobody", 400, "invalid_value"),
    ],
)
def test_other_refusals(
    server: LiveServer, method: str, path: str, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    httpx.request(method, server.url + path, json={"text": 5})
    line = line_of(caplog)
    assert (line["method"], line["path"], line["status"], line["code"]) == (method, path, status, code)


def test_the_name_of_the_key_and_never_the_key(caplog: pytest.LogCaptureFixture) -> None:
    with live_server(config=ServerConfig(api_keys=(SecretStr("sesame"),))) as server:
        httpx.post(server.url + SPEECH, json=BODY, headers={"Authorization": "Bearer sesame"})
        httpx.post(server.url + SPEECH, json=BODY, headers={"xi-api-key": "wrong"})
        wait_until(lambda: len(lines(caplog, "request")) == 2)
    known, unknown = lines(caplog, "request")
    assert (known["key"], known["status"]) == ("key 1", 200)
    assert (unknown["status"], unknown["code"], unknown["outcome"]) == (401, "invalid_api_key", "rejected")
    assert "key" not in unknown
    assert "sesame" not in str(lines(caplog, "request"))


def test_a_body_that_is_too_large(caplog: pytest.LogCaptureFixture) -> None:
    with live_server(config=ServerConfig(max_body_bytes=100)) as server:
        httpx.post(server.url + SPEECH, json={**BODY, "input": "a" * 200})
        line = line_of(caplog)
    assert (line["status"], line["code"]) == (413, "body_too_large")


def test_a_limit_of_a_key(caplog: pytest.LogCaptureFixture) -> None:
    config = ServerConfig(api_keys=(SecretStr("k"),), key_requests_per_minute=1)
    with live_server(config=config) as server:
        for _ in range(2):
            httpx.post(server.url + SPEECH, json=BODY, headers={"Authorization": "Bearer k"})
        wait_until(lambda: len(lines(caplog, "request")) == 2)
    limited = lines(caplog, "request")[1]
    assert limited.items() >= {"status": 429, "code": "rate_limit_exceeded", "outcome": "refused", "chars": 12}.items()


@pytest.mark.parametrize(("trusted", "client"), [((), "127.0.0.1"), (("127.0.0.1",), "203.0.113.9")])
def test_the_address_behind_a_proxy(trusted: tuple[str, ...], client: str, caplog: pytest.LogCaptureFixture) -> None:
    with live_server(config=ServerConfig(trusted_proxies=trusted)) as server:
        httpx.get(server.url + "/v1/models", headers={"X-Forwarded-For": "203.0.113.9"})
        assert line_of(caplog)["client"] == client


def test_what_is_no_http(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    answer = exchange(server.url, b"a secret text\r\n\r\n")
    line = line_of(caplog)
    assert line.items() >= {"status": 400, "code": "invalid_request", "client": "127.0.0.1"}.items()
    assert answer.status == 400
    assert "secret" not in caplog.text


@pytest.mark.parametrize(("key", "status"), [("Sec-WebSocket-Version: 5", 400), ("Sec-WebSocket-Key: x", 400)])
def test_a_handshake_that_is_none(server: LiveServer, key: str, status: int, caplog: pytest.LogCaptureFixture) -> None:
    name = key.partition(":")[0]
    kept = [line for line in handshake("/v1/realtime").split(b"\r\n") if not line.startswith(name.encode())]
    answer = exchange(server.url, b"\r\n".join([*kept[:-2], key.encode(), b"", b""]))
    line = line_of(caplog)
    assert answer.status == line["status"] == status
    assert (line["path"], line["code"]) == ("/v1/realtime", "invalid_handshake")


def test_an_unknown_socket(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    answer = exchange(server.url, handshake("/v1/bogus"))
    line = line_of(caplog, "connection")
    assert line.items() >= {"path": "/v1/bogus", "status": 404, "code": "not_found"}.items()
    assert len(answer.headers["x-request-id"]) == 32


def test_a_batch(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    items = [{"input": "Hello."}, {"input": "Hello.", "voice": "nobody"}]
    httpx.post(f"{server.url}{SPEECH}/batch", json={"items": items, "voice": "heart"}, headers=ME)
    line = line_of(caplog)
    first, second = sorted(lines(caplog, "item"), key=lambda item: int(item["item"]))
    assert line.items() >= {"status": 200, "items": 2, "chars": 12, "audio_s": first["audio_s"]}.items()
    assert first.items() >= {"outcome": "completed", "voice": "heart", "format": "mp3", "chars": 6}.items()
    assert second.items() >= {"outcome": "rejected", "code": "voice_not_found", "param": "voice"}.items()
    assert first["user_agent"] == second["user_agent"] == "a client/1 (x)"
    assert first["first_audio_s"] <= first["duration_s"]


# ---- sockets


async def test_live_text(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    async with dial(server) as live:
        await live.configure()
        for _ in range(2):
            await live.say("Hello there.")
            await live.send("input.done")
            await live.utterance()
        await live.send("input.done")
        assert (await live.error())["code"] == "invalid_state"
        await live.send("session.close")
        await live.close_code()
    line = await asyncio.to_thread(line_of, caplog, "connection")
    first, second = lines(caplog, "utterance")
    [error] = lines(caplog, "error")
    about = {"path": f"{SPEECH}/stream", "client": "127.0.0.1"}
    assert line.items() >= {**about, "status": 101, "close_code": 1000, "utterances": 2, "errors": 1}.items()
    assert (line["chars"], line["audio_s"]) == (24, pytest.approx(first["audio_s"] + second["audio_s"]))
    spoken = {**about, "outcome": "completed", "model": "fake", "voice": "heart", "format": "pcm", "chars": 12}
    assert first.items() >= {**spoken, "utterance": 0}.items()
    assert second.items() >= {**spoken, "utterance": 1}.items()
    assert {"first_audio_s", "queue_wait_s", "duration_s", "user_agent"} <= first.keys()
    assert error.items() >= {**about, "code": "invalid_state"}.items()


async def test_a_socket_that_breaks_the_protocol(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    async with dial(server) as live:
        await live.connection.send("a secret text that is no JSON")
        await live.close_code()
    line = await asyncio.to_thread(line_of, caplog, "connection")
    assert (line["close_code"], line["code"]) == (1002, "bad_message")


async def test_realtime(server: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    async with dial_realtime(server) as realtime:
        await realtime.expect("session.created")
        await realtime.say("Hello there.")
        await realtime.response()
        await realtime.send("response.cancel")
        await realtime.until("error")
    line = await asyncio.to_thread(line_of, caplog, "connection")
    [spoken] = lines(caplog, "utterance")
    [error] = lines(caplog, "error")
    assert line.items() >= {"path": "/v1/realtime", "utterances": 1, "chars": 12, "errors": 1}.items()
    assert spoken.items() >= {"outcome": "completed", "format": "pcm", "voice": "alloy", "chars": 12}.items()
    assert error["code"] == "response_cancel_not_active"


@pytest.mark.parametrize("path", ["stream-input", "multi-stream-input"])
async def test_elevenlabs(server: LiveServer, path: str, caplog: pytest.LogCaptureFixture) -> None:
    url = f"{server.url.replace('http', 'ws')}/v1/text-to-speech/heart/{path}?output_format=pcm_24000"
    async with connect(url, proxy=None) as connection:
        last = {"close_socket": True} if path.startswith("multi") else {"text": ""}
        for message in ({"text": " "}, {"text": "Hello there. ", "flush": True}, last):
            await connection.send(json.dumps(message))
        await close_code_of(connection)
    line = await asyncio.to_thread(line_of, caplog, "connection")
    [spoken] = lines(caplog, "utterance")
    assert line.items() >= {"status": 101, "close_code": 1000, "utterances": 1}.items()
    assert spoken.items() >= {"outcome": "completed", "voice": "heart", "format": "pcm", "model": "fake"}.items()


async def test_wyoming(caplog: pytest.LogCaptureFixture) -> None:
    with wyoming_server() as server:
        async with dial_wyoming(server.port) as client:
            await client.send("synthesize", text="Hello there.")
            await client.until("audio-stop")
        line = await asyncio.to_thread(line_of, caplog, "connection")
    [spoken] = lines(caplog, "utterance")
    assert line.items() >= {"path": "wyoming", "client": "127.0.0.1", "utterances": 1, "chars": 12}.items()
    assert spoken.items() >= {"path": "wyoming", "outcome": "completed", "model": "fake", "chars": 12}.items()
