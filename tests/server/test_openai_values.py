"""Values that OpenAI's clients send for a field: null for its default, dated models, languages by code, empty names."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from vivavoce_server.live.websocket import SessionConfig
from vivavoce_server.schemas import SpeechRequest
from vivavoce_server.text_parts import language_of_code

from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import dial

SPEECH, BATCH = "/v1/audio/speech", "/v1/audio/speech/batch"
BODY: dict[str, Any] = {"input": "Hi.", "voice": "alloy", "response_format": "pcm", "seed": 3}
NO_DEFAULT = {"input", "voice"}
DEFAULTED = sorted({field.alias or name for name, field in SpeechRequest.model_fields.items()} - NO_DEFAULT)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


def post(server: LiveServer, path: str = SPEECH, **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body)


@pytest.mark.parametrize("field", DEFAULTED)
def test_null_means_the_default(server: LiveServer, field: str) -> None:
    without = {name: value for name, value in BODY.items() if name != field}
    if field in ("seed", "response_format"):  # without a seed, and as mp3, speech differs from time to time
        null, absent = post(server, **{**BODY, field: None}), post(server, **without)
        assert (null.status_code, null.headers["content-type"]) == (200, absent.headers["content-type"])
    else:
        assert post(server, **{**BODY, field: None}).content == post(server, **without).content


def test_null_means_the_default_in_a_batch_and_its_items(server: LiveServer) -> None:
    nulls = dict.fromkeys(name for name in DEFAULTED if name not in ("return", "stream", "stream_format", "seed"))
    shared = {"voice": "alloy", "seed": 3}
    plain = post(server, BATCH, **shared, items=[{"input": "Hi."}]).json()["results"]
    batch_nulls = {name: value for name, value in nulls.items() if name != "segments"}  # which are a text's own
    for body in (
        {**batch_nulls, **shared, "items": [{"input": "Hi."}]},
        {**shared, "items": [{"input": "Hi.", **nulls}]},
    ):
        results = post(server, BATCH, **body).json()["results"]
        assert [result["audio_data"] for result in results] == [result["audio_data"] for result in plain]


async def test_null_means_the_default_on_a_socket(server: LiveServer) -> None:
    names = {field.alias or name for name, field in SessionConfig.model_fields.items()} - {"type", "voice", "seed"}
    async with dial(server) as socket:
        await socket.configure(**dict.fromkeys(names))
        await socket.say("Hi.")
        await socket.send("input.done")
        assert (await socket.utterance()).start["format"] == "pcm"


@pytest.mark.parametrize(
    "model",
    [
        "",
        "tts-1",
        "tts-1-hd",
        "gpt-4o-mini-tts",
        "tts-1-1106",
        "tts-1-hd-1106",
        "gpt-4o-mini-tts-2025-03-20",
        "gpt-4o-mini-tts-2025-12-15",
        "gpt-4o-mini-tts-2030-01-01",
    ],
)
def test_openais_models_are_the_first_one(server: LiveServer, model: str) -> None:
    assert post(server, **BODY, model=model).status_code == 200
    if model:
        assert httpx.get(f"{server.url}/v1/models/{model}").json()["id"] == "fake"


@pytest.mark.parametrize(
    "model", ["gpt-4o-mini-tts-", "gpt-4o-mini-tts-latest", "tts-1-hd-hd", "tts-10", "gpt-realtime"]
)
def test_other_models_are_refused(server: LiveServer, model: str) -> None:
    assert post(server, **BODY, model=model).status_code == 404
    assert httpx.get(f"{server.url}/v1/models/{model}").status_code == 404


@pytest.mark.parametrize(
    "language",
    ["en", "EN", "eng", "ENG", "en-US", "en_gb", "en-Latn-US", "english", "English", "ENGLISH", " en ", "", "auto"],
)
def test_a_language_is_a_name_or_a_code(server: LiveServer, language: str) -> None:
    assert post(server, **BODY, language=language).status_code == 200
    body = {"voice": "alloy", "items": [{"input": "Hi.", "language": language}]}
    assert post(server, BATCH, **body).json()["succeeded"] == 1


@pytest.mark.parametrize("language", ["xx", "-en", "englisch", "e", "de"])
def test_other_languages_are_refused(server: LiveServer, language: str) -> None:
    answer = post(server, **BODY, language=language)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "language")


@pytest.mark.parametrize(
    ("code", "name"),
    [("cmn-Hans-CN", "chinese"), ("ZH_tw", "chinese"), ("ger", "german"), ("pt-BR", "portuguese"), ("jpn", "japanese")],
)
def test_codes_of_iso_639(code: str, name: str) -> None:
    assert language_of_code(code) == name


@pytest.mark.parametrize("body", [[BODY], "text", json.dumps(BODY), 5, True])
def test_a_body_that_is_no_object(server: LiveServer, body: object) -> None:
    answer = httpx.post(server.url + SPEECH, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "The body: Input should be a JSON object"
