"""The OpenAPI document matches the server, and explains every field."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from pydantic import SecretStr
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.fake_runner import FakeRunner, fake_voices
from vivavoce_server import ServerConfig
from vivavoce_server.app import TAGS

from tests.support.live_server import LiveServer, live_server

SPEECH = "/v1/audio/speech"
METHODS = ("get", "post", "put", "patch", "delete")
PROBES = ("/health", "/ready")
Document = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> Document:
    with live_server() as server:
        answer: Document = httpx.get(f"{server.url}/openapi.json").json()
        return answer


@pytest.fixture(scope="module")
def keyed_document() -> Document:
    with live_server(config=ServerConfig(api_keys=(SecretStr("k"),))) as server:
        answer: Document = httpx.get(f"{server.url}/openapi.json").json()
        return answer


def operations(document: Document) -> Iterator[tuple[str, Document]]:
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield f"{method.upper()} {path}", item[method]


def has_example(schema: Document) -> bool:
    """True if a reader sees a value: an example, the only one there is, or an object whose fields have examples."""
    if "examples" in schema or "example" in schema or "const" in schema or "$ref" in schema:
        return True
    members = [member for key in ("anyOf", "oneOf", "allOf") for member in schema.get(key, ())]
    return any(map(has_example, members)) or ("items" in schema and has_example(schema["items"]))


def fields(document: Document) -> Iterator[tuple[str, Document]]:
    """Every field of every body, and every parameter, by its name."""
    for name, schema in document["components"]["schemas"].items():
        for field, content in schema.get("properties", {}).items():
            yield f"{name}.{field}", content
    for name, operation in operations(document):
        for body in operation.get("requestBody", {}).get("content", {}).values():
            for field, content in body["schema"].get("properties", {}).items():
                yield f"{name} {field}", content
        for parameter in operation.get("parameters", ()):
            examples = {key: parameter[key] for key in ("examples", "example") if key in parameter}
            about = {"description": parameter["description"]} if "description" in parameter else {}
            yield f"{name} {parameter['name']}", {**parameter["schema"], **about, **examples}


def test_every_field_has_a_description_and_an_example(document: Document) -> None:
    all_fields = dict(fields(document))
    assert len(all_fields) > 150
    assert [name for name, schema in all_fields.items() if not schema.get("description", "").strip()] == []
    assert [name for name, schema in all_fields.items() if not has_example(schema)] == []


def test_every_example_fits_its_field(document: Document) -> None:
    checked = 0
    for name, schema in fields(document):
        validator = jsonschema_rs.validator_for({**schema, "components": document["components"]})
        for example in schema.get("examples", ()):
            checked += 1
            assert validator.is_valid(example), (name, example)
    assert checked > 150


def test_a_field_without_either_would_be_found() -> None:
    assert not has_example({"type": "string"})
    assert not has_example({"anyOf": [{"type": "string"}, {"type": "null"}]})
    bare = {"components": {"schemas": {"A": {"properties": {"b": {"type": "string"}}}}}, "paths": {}}
    assert [name for name, schema in fields(bare) if "description" not in schema] == ["A.b"]


def test_every_object_is_explained(document: Document) -> None:
    schemas = document["components"]["schemas"]
    assert [name for name, schema in schemas.items() if not schema.get("description", "").strip()] == []


def test_every_route_has_a_summary_a_description_and_a_tag(document: Document) -> None:
    assert [tag["name"] for tag in document["tags"]] == list(TAGS)
    for name, operation in operations(document):
        assert operation["summary"].strip(), name
        assert operation["description"].strip(), name
        assert len(operation["tags"]) == 1, name
        assert operation["tags"][0] in TAGS, name
    names = [(operation["tags"][0], operation["summary"]) for _, operation in operations(document)]
    duplicates = {name for name in names if names.count(name) > 1}
    assert duplicates == set()


def test_every_error_has_the_error_model(document: Document) -> None:
    for name, operation in operations(document):
        path = name.split()[1]
        wanted = set() if path in PROBES else {"400", "401", "403", "500"}
        wanted |= {"404"} if "{model}" in path or ("{voice_id}" in path and "text-to-speech" not in path) else set()
        assert wanted <= operation["responses"].keys(), name
        for status, response in operation["responses"].items():
            if status[0] in "45" and path not in PROBES:
                assert response["description"], name
                content = response["content"]["application/json"]
                assert content["schema"] == {"$ref": "#/components/schemas/ErrorBody"}, (name, status)


def test_speech_is_described(document: Document) -> None:
    operation = document["paths"][SPEECH]["post"]
    audio = {"audio/mpeg", "audio/ogg", "audio/aac", "audio/flac", "audio/wav", "audio/pcm", "text/event-stream"}
    spoken = operation["responses"]["200"]["content"]
    telephony = {"audio/PCMU;rate=8000", "audio/PCMA;rate=8000"}
    assert spoken.keys() >= audio | telephony | {"application/json"}
    assert spoken["application/json"]["schema"] == {"$ref": "#/components/schemas/SpokenText"}
    assert "X-Vivavoce-Warnings" in operation["responses"]["200"]["headers"]
    assert {"400", "401", "403", "404", "413", "429", "500", "503", "507"} <= operation["responses"].keys()
    assert "422" not in operation["responses"]
    body = document["components"]["schemas"]["SpeechRequest"]
    assert body["additionalProperties"] is False
    assert "required" not in body  # segments may stand for the input
    assert body["properties"]["response_format"]["default"] == "mp3"
    assert body["properties"]["return"]["anyOf"] == [{"enum": ["audio", "text"], "type": "string"}, {"type": "null"}]


def own_headers(response: httpx.Response) -> set[str]:
    return {name for name in response.headers if name.startswith("x-") and name != "x-accel-buffering"} | (
        {"etag"} & response.headers.keys()
    )


def test_the_headers_of_speech_are_described(document: Document, tmp_path: Path) -> None:
    config = ServerConfig(cache_dir=tmp_path, mark_audio="metadata")
    openai = {"input": "Hello.", "voice": "heart", "seed": 1}
    elevenlabs = {"text": "Hello.", "seed": 1, "previous_text": "And"}
    requests: list[tuple[str, Document, int]] = [
        (SPEECH, openai, 304),
        (SPEECH, {**openai, "stream": False, "max_new_tokens": 1}, 304),
        (SPEECH, {**openai, "stream_format": "sse"}, 200),
        (f"{SPEECH}/batch", {"items": [openai]}, 200),
        *(
            (f"/v1/text-to-speech/{{voice_id}}{rest}", elevenlabs, status)
            for rest, status in (
                ("", 304),
                ("/stream", 304),
                ("/with-timestamps", 304),
                ("/stream/with-timestamps", 200),
            )
        ),
    ]
    for path in {path for path, _, _ in requests}:
        operation = document["paths"][path]["post"]
        is_file = (path, 304) in {(path, status) for path, _, status in requests}
        assert ("304" in operation["responses"]) == is_file, path
        assert ("If-None-Match" in {each["name"] for each in operation["parameters"]}) == is_file, path
    engine = Engine(FakeRunner(), EngineConfig(), fake_voices(), "fake")  # speech is kept of models with an identity
    with live_server(engine, config) as server:
        for path, body, status in requests:
            url = server.url + path.format(voice_id="heart")
            operation = document["paths"][path]["post"]
            answer = httpx.post(url, json=body)
            again = httpx.post(url, json=body, headers={"If-None-Match": answer.headers.get("etag", '""')})
            assert again.status_code == status, path
            for response in (answer, again):
                described = {name.lower() for name in operation["responses"][str(response.status_code)]["headers"]}
                assert own_headers(response) <= described, path


def test_a_server_without_keys_asks_for_none(document: Document) -> None:
    assert "securitySchemes" not in document["components"]
    assert all("security" not in operation for _, operation in operations(document))


def test_keys_are_in_the_document_where_they_are_wanted(keyed_document: Document) -> None:
    schemes = keyed_document["components"]["securitySchemes"]
    assert schemes["key"]["type"] == "http"
    assert schemes["key"]["scheme"] == "bearer"
    assert schemes["elevenlabs_key"]["in"] == "header"
    for name, operation in operations(keyed_document):
        if name.split()[1] in PROBES:
            assert "security" not in operation, name
        elif operation["tags"] == ["ElevenLabs"]:
            assert operation["security"] == [{"key": []}, {"elevenlabs_key": []}], name
        else:
            assert operation["security"] == [{"key": []}], name


def test_the_server_is_where_the_document_is(server: LiveServer) -> None:
    """A relative address is right behind any prefix."""
    assert httpx.get(f"{server.url}/openapi.json").json()["servers"] == [{"url": "./", "description": "This server"}]
