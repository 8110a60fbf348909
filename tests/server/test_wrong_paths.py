"""A path that does not exist: the error names the one that was meant."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.support.live_server import LiveServer, live_server


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


BASE = "The base URL of OpenAI's clients is this server's address with /v1"


@pytest.mark.parametrize(
    ("method", "path", "meant"),
    [
        ("POST", "/audio/speech", f"there is /v1/audio/speech. {BASE}"),
        ("GET", "/models", f"there is /v1/models. {BASE}"),
        ("GET", "/models/tts-1", f"there is /v1/models/tts-1. {BASE}"),
        ("GET", "/audio/voices", f"there is /v1/audio/voices. {BASE}"),
        ("POST", "/v1/v1/audio/speech", f"there is /v1/audio/speech. {BASE}"),
        ("POST", "/api/v1/audio/speech", f"there is /v1/audio/speech. {BASE}"),
        ("POST", "/openai/v1/audio/speech", f"there is /v1/audio/speech. {BASE}"),
        ("POST", "/text-to-speech/alloy/stream", f"there is /v1/text-to-speech/alloy/stream. {BASE}"),
        ("POST", "/v1/audio/speeches", "there is /v1/audio/speech"),
        ("POST", "/v1/audio/speach", "there is /v1/audio/speech"),
        ("POST", "/V1/Audio/Speech", "there is /v1/audio/speech"),
        ("GET", "/helth", "there is /health"),
        ("GET", "/v1", "it is the beginning of /v1/models, and of other paths in /docs"),
        ("GET", "/v1/", "it is the beginning of /v1/models, and of other paths in /docs"),
    ],
)
def test_the_path_that_was_meant_is_named(server: LiveServer, method: str, path: str, meant: str) -> None:
    answer = httpx.request(method, server.url + path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert answer.json()["error"]["message"] == f"There is nothing at {method} {path}; {meant}"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/favicon.ico", "/v1/audio/transcriptions", "/" + "a/" * 9000])
def test_a_path_like_no_other_gets_no_hint(server: LiveServer, path: str) -> None:
    answer = httpx.get(server.url + path)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == f"There is nothing at GET {path}"[:4096]


def test_openais_client_tells_its_user(server: LiveServer) -> None:
    with (
        openai.OpenAI(base_url=server.url, api_key="unused", max_retries=0) as client,
        pytest.raises(openai.NotFoundError, match="there is /v1/audio/speech") as wrong,
    ):
        client.audio.speech.create(model="tts-1", voice="alloy", input="Hi.")
    assert wrong.value.code == "not_found"
