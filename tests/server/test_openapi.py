"""The OpenAPI document matches the server."""

import httpx
import pytest
from pydantic import SecretStr
from vivavoce_server import ServerConfig

from tests.support.live_server import LiveServer, live_server

SPEECH = "/v1/audio/speech"


def test_the_page_loads(server: LiveServer) -> None:
    assert httpx.get(f"{server.url}/docs").status_code == 200


def test_speech_is_described(server: LiveServer) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    operation = document["paths"][SPEECH]["post"]
    audio = {"audio/mpeg", "audio/ogg", "audio/aac", "audio/flac", "audio/wav", "audio/pcm", "text/event-stream"}
    spoken = operation["responses"]["200"]["content"]
    telephony = {"audio/PCMU;rate=8000", "audio/PCMA;rate=8000"}
    assert spoken.keys() == audio | telephony | {"application/json"}
    assert spoken["application/json"]["schema"] == {"$ref": "#/components/schemas/SpokenText"}
    assert "X-Vivavoce-Warnings" in operation["responses"]["200"]["headers"]
    for status in ("400", "401", "404", "413", "429", "500", "503"):
        schema = operation["responses"][status]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/ErrorBody"}
    assert "422" not in operation["responses"]
    body = document["components"]["schemas"]["SpeechRequest"]
    assert body["additionalProperties"] is False
    assert body["required"] == ["input"]
    assert body["properties"]["response_format"]["default"] == "mp3"
    assert body["properties"]["return"]["anyOf"] == [{"enum": ["audio", "text"], "type": "string"}, {"type": "null"}]


@pytest.mark.parametrize(("keys", "wanted"), [((), False), ((SecretStr("k"),), True)])
def test_keys_are_in_the_document_where_they_are_wanted(keys: tuple[SecretStr, ...], wanted: bool) -> None:
    with live_server(config=ServerConfig(api_keys=keys)) as server:
        document = httpx.get(f"{server.url}/openapi.json").json()
    assert ("security" in document["paths"][SPEECH]["post"]) == wanted
    assert "security" not in document["paths"]["/health"]["get"]
