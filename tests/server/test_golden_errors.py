"""Every class of error, exactly as clients receive it (tests/server/golden_errors.json)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from vivavoce_engine import Engine, NotServing, Overloaded, SynthesisFailed
from vivavoce_server import ServerConfig

from tests.support.live_server import fake_engine, live_server

GOLDEN = json.loads((Path(__file__).parent / "golden_errors.json").read_text(encoding="utf-8"))
SPEECH = "/v1/audio/speech"
GOOD = {"input": "Hello.", "voice": "heart"}
CONFIG = ServerConfig(api_keys=(SecretStr("key"),), key_requests_per_minute=1, max_body_bytes=1000, max_input_chars=100)
Ask = Callable[[httpx.Client], httpx.Response]


def speech(**fields: Any) -> Ask:
    return lambda client: client.post(SPEECH, json={**GOOD, **fields})


def raw(content: bytes) -> Ask:
    return lambda client: client.post(SPEECH, content=content, headers={"Content-Type": "application/json"})


def twice(client: httpx.Client) -> httpx.Response:
    client.post(SPEECH, json=GOOD)
    return client.post(SPEECH, json=GOOD)


ASKED: dict[str, Ask] = {
    "unknown_field": speech(sped=1),
    "missing_field": lambda client: client.post(SPEECH, json={"voice": "heart"}),
    "wrong_type": speech(input=5),
    "out_of_range": speech(speed=5),
    "blank_text": speech(input=" "),
    "text_too_long": speech(input="a" * 101),
    "unknown_voice": speech(voice="nobody"),
    "missing_voice": speech(voice=None),
    "unknown_model": speech(model="gpt-5"),
    "not_available": lambda client: client.post("/dev/captioned_speech", json={**GOOD, "return_download_link": True}),
    "bad_pause": speech(input="Hi [pause:long]"),
    "not_json": raw(b"{"),
    "body_too_large": raw(b"a" * 1001),
    "wrong_key": lambda client: client.post(SPEECH, json=GOOD, headers={"Authorization": "Bearer wrong"}),
    "no_route": lambda client: client.get("/v1/nothing"),
    "wrong_method": lambda client: client.get(SPEECH),
    "rate_limit": twice,
}
# Made anew for each test: an exception holds the frames that it went through, and so an encoder.
ENGINE_ERRORS: dict[str, Callable[[], Exception]] = {
    "queue_full": lambda: Overloaded("64 requests are waiting already", 1.0),
    "not_serving": lambda: NotServing("the engine is not serving"),
    "synthesis_failed": lambda: SynthesisFailed("the model made audio that is not a number"),
    "bug": lambda: KeyError("secret"),
}


def as_golden(response: httpx.Response) -> dict[str, Any]:
    names = ("retry-after", "www-authenticate", "allow")
    headers = {name: response.headers[name] for name in names if name in response.headers}
    if "retry-after" in headers and response.json()["error"]["code"] == "rate_limit_exceeded":
        assert 0 < int(headers.pop("retry-after")) <= 60
    return {"status": response.status_code, "headers": headers, "body": response.json()}


@pytest.mark.parametrize("name", ASKED)
def test_requests(name: str) -> None:
    with live_server(config=CONFIG) as server, httpx.Client(base_url=server.url) as client:
        client.headers["Authorization"] = "Bearer key"
        assert as_golden(ASKED[name](client)) == GOLDEN[name]


@pytest.mark.parametrize("name", ENGINE_ERRORS)
def test_engine_errors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(self: Engine, request: object) -> None:
        raise ENGINE_ERRORS[name]()

    with live_server(fake_engine()) as server:
        monkeypatch.setattr(Engine, "submit", submit)
        assert as_golden(httpx.post(server.url + SPEECH, json=GOOD)) == GOLDEN[name]


def test_every_golden_answer_is_asked_for() -> None:
    assert GOLDEN.keys() == ASKED.keys() | ENGINE_ERRORS.keys()
