"""Invalid input: each case names the field, keeps OpenAI's shape, and leaves the server serving."""

from typing import Any

import httpx
import pytest
from vivavoce_engine import CheckpointError, EngineError, NotServing, Overloaded, Rejected, SynthesisFailed
from vivavoce_server import errors

from tests.support.live_server import LiveServer, fake_engine, live_server

GOOD = {"model": "tts-1", "input": "Hello.", "voice": "heart"}
BAD_FIELDS: list[tuple[dict[str, Any], int, str, str]] = [
    ({"input": ""}, 400, "input", "nothing_to_speak"),
    ({"input": "  \n\t"}, 400, "input", "nothing_to_speak"),
    ({"input": "a" * 4097}, 400, "input", "string_above_max_length"),
    ({"input": 5}, 400, "input", "invalid_value"),
    ({"input": None}, 400, "input", "invalid_value"),
    ({"voice": "nobody"}, 400, "voice", "voice_not_found"),
    ({"voice": ""}, 400, "voice", "missing_required_parameter"),
    ({"voice": None}, 400, "voice", "missing_required_parameter"),
    ({"voice": ["heart"]}, 400, "voice", "invalid_value"),
    ({"voice": {"id": "nobody"}}, 400, "voice", "voice_not_found"),
    ({"voice": {"name": "heart"}}, 400, "voice", "invalid_value"),
    ({"model": "gpt-5"}, 404, "model", "model_not_found"),
    ({"model": 1}, 400, "model", "invalid_value"),
    ({"sped": 1.0}, 400, "sped", "unknown_parameter"),
    ({"speed": "fast"}, 400, "speed", "invalid_value"),
    ({"speed": "1.0"}, 400, "speed", "invalid_value"),
    ({"speed": 5}, 400, "speed", "invalid_value"),
    ({"response_format": "midi"}, 400, "response_format", "invalid_value"),
    ({"stream_format": "chunks"}, 400, "stream_format", "invalid_value"),
    ({"stream": "yes"}, 400, "stream", "invalid_value"),
    ({"seed": -1}, 400, "seed", "invalid_value"),
    ({"seed": 2**63}, 400, "seed", "invalid_value"),
    ({"seed": 1.5}, 400, "seed", "invalid_value"),
    ({"temperature": -0.1}, 400, "temperature", "invalid_value"),
    ({"top_p": 0}, 400, "top_p", "invalid_value"),
    ({"top_k": -2}, 400, "top_k", "invalid_value"),
    ({"max_new_tokens": 0}, 400, "max_new_tokens", "invalid_value"),
    ({"language": "Klingon"}, 400, "language", "invalid_value"),
    ({"task_type": "VoiceDesign"}, 400, "task_type", "invalid_value"),
    ({"ref_audio": "data:audio/wav;base64,AAAA"}, 400, "voice", "invalid_value"),
    ({"voice": "alloy", "ref_audio": "data:audio/wav;base64,AAAA"}, 400, "ref_audio", "invalid_value"),
    ({"voice": "alloy", "speaker_embedding": [0.1]}, 400, "speaker_embedding", "invalid_value"),
]


@pytest.mark.parametrize(("fields", "status", "param", "code"), BAD_FIELDS)
def test_bad_field(server: LiveServer, fields: dict[str, Any], status: int, param: str, code: str) -> None:
    response = httpx.post(f"{server.url}/v1/audio/speech", json={**GOOD, **fields})
    assert response.status_code == status
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert error["message"]
    assert httpx.post(f"{server.url}/v1/audio/speech", json=GOOD).status_code == 200


def test_a_missing_input_is_named(server: LiveServer) -> None:
    error = httpx.post(f"{server.url}/v1/audio/speech", json={"voice": "heart"}).json()["error"]
    assert error == {
        "message": "Missing required field: input",
        "type": "invalid_request_error",
        "param": "input",
        "code": "missing_required_parameter",
    }


@pytest.mark.parametrize(
    ("content", "content_type", "code"),
    [
        (b"{", "application/json", "invalid_json"),
        (b"", "application/json", "missing_required_parameter"),
        (b"[1]", "application/json", "invalid_value"),
        (b"\xff\xfe", "application/json", "invalid_json"),
        (b'{"input": "a", "voice": "heart", "temperature": NaN}', "application/json", "invalid_value"),
        (b"input=hello", "application/x-www-form-urlencoded", "invalid_value"),
    ],
)
def test_a_bad_body_is_400(server: LiveServer, content: bytes, content_type: str, code: str) -> None:
    url = f"{server.url}/v1/audio/speech"
    response = httpx.post(url, content=content, headers={"Content-Type": content_type})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == code


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/audio/speech", 405, "method_not_allowed"),
        ("GET", "/v1/models/nothing", 404, "model_not_found"),
    ],
)
def test_bad_routes_have_the_same_shape(server: LiveServer, method: str, path: str, status: int, code: str) -> None:
    response = httpx.request(method, server.url + path)
    assert response.status_code == status
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    assert response.json()["error"]["code"] == code


def test_a_bug_is_500_without_its_secrets() -> None:
    engine = fake_engine()
    with live_server(engine) as server:
        engine.submit = lambda request: (_ for _ in ()).throw(KeyError("secret"))  # type: ignore[method-assign]
        response = httpx.post(f"{server.url}/v1/audio/speech", json=GOOD)
    assert response.status_code == 500
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    assert "secret" not in response.text


@pytest.mark.parametrize(
    ("error", "status", "param", "code"),
    [
        (Rejected("text", "no"), 400, "input", "invalid_value"),
        (Rejected("speaker", "no"), 400, "voice", "invalid_value"),
        (Rejected("max_frames", "no"), 400, "max_new_tokens", "invalid_value"),
        (Rejected("instructions", "no"), 400, "instructions", "invalid_value"),
        (Overloaded("full", 1.0), 429, None, "queue_full"),
        (NotServing("stopping"), 503, None, "not_serving"),
        (SynthesisFailed("broke"), 500, None, "synthesis_failed"),
        (CheckpointError("bad"), 500, None, "engine_error"),
        (EngineError("any"), 500, None, "engine_error"),
    ],
)
def test_every_engine_error_has_a_place(error: EngineError, status: int, param: str | None, code: str) -> None:
    got_status, detail = errors.engine_error_detail(error)
    assert (got_status, detail.param, detail.code) == (status, param, code)
    assert detail.message == str(error)


@pytest.mark.parametrize(("method", "path"), [("GET", "/" + "a" * 60_000), ("A" * 60_000, "/v1/models")])
def test_a_message_repeats_a_part_of_a_long_request(server: LiveServer, method: str, path: str) -> None:
    response = httpx.request(method, server.url + path)
    assert response.status_code in (404, 405)
    assert len(response.json()["error"]["message"]) == errors.MAX_MESSAGE_CHARS


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sped": 1.0}, "Unknown field: sped; did you mean speed?"),
        ({"Response-Format": "wav"}, "Unknown field: Response-Format; did you mean response_format?"),
        ({"normalization_options": {"url_normalisation": True}}, "did you mean url_normalization?"),
        ({"xyz": 1}, "Unknown field: xyz"),
        ({"s" * 100_000: 1}, "Unknown field: ssss"),
    ],
)
def test_an_unknown_field_that_is_nearly_one_is_told_what_may_be_meant(
    server: LiveServer, fields: dict[str, Any], message: str
) -> None:
    error = httpx.post(f"{server.url}/v1/audio/speech", json={**GOOD, **fields}).json()["error"]
    assert error["code"] == "unknown_parameter"
    assert message in error["message"]
    assert ("did you mean" in error["message"]) == ("did you mean" in message)


def test_a_misspelt_field_is_told_before_the_one_that_is_missing_therefore(server: LiveServer) -> None:
    error = httpx.post(f"{server.url}/v1/audio/speech", json={"voice": "heart", "imput": "Hello."}).json()["error"]
    assert (error["param"], error["message"]) == ("imput", "Unknown field: imput; did you mean input?")
