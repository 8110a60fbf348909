"""Models, voices, health, readiness."""

from dataclasses import replace

import httpx
import pytest
from vivavoce_engine import Engine, EngineConfig, ModelInfo, SpeakerInfo
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices
from vivavoce_server import ServerConfig, create_app
from vivavoce_server.errors import ApiError
from vivavoce_server.openai_voices import OPENAI_VOICES
from vivavoce_server.references import References
from vivavoce_server.schemas import SpeechOptions

from tests.support.live_server import LiveServer, live_server

SHIPPED = replace(FAKE_INFO, speakers=("heart", "bella", "michael", "fenrir", "emma", "george"))
QWEN = replace(
    FAKE_INFO,
    speakers=("serena", "vivian", "uncle_fu", "ryan", "aiden", "ono_anna", "sohee", "eric", "dylan"),
)
UNKNOWN = replace(FAKE_INFO, speakers=("x", "y"))
DESIGN = replace(FAKE_INFO, task="voice_design", speakers=())


def test_models(server: LiveServer) -> None:
    listed = httpx.get(f"{server.url}/v1/models").json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert (model["id"], model["object"], model["owned_by"]) == ("fake", "model", "vivavoce")
    assert isinstance(model["created"], int)
    assert httpx.get(f"{server.url}/v1/models/fake").json() == model
    assert httpx.get(f"{server.url}/v1/models/tts-1").json() == model


def test_open_webui_finds_models_and_voices(server: LiveServer) -> None:
    assert httpx.get(f"{server.url}/v1/audio/models").json() == {"models": [{"id": "fake", "name": "fake"}]}
    voices = httpx.get(f"{server.url}/v1/audio/voices").json()["voices"]
    assert {voice["id"]: voice["name"] for voice in voices} == {"heart": "heart", "michael": "michael"}


def test_a_model_may_be_served_under_another_name() -> None:
    with live_server(config=ServerConfig(model_name="org/name")) as server:
        assert httpx.get(f"{server.url}/v1/models/org/name").json()["id"] == "org/name"


def test_voices(server: LiveServer) -> None:
    voices = httpx.get(f"{server.url}/v1/audio/voices").json()["voices"]
    assert [(voice["id"], voice["name"], voice["model"]) for voice in voices] == [
        ("heart", "heart", "fake"),
        ("michael", "michael", "fake"),
    ]
    assert sorted(alias for voice in voices for alias in voice["aliases"]) == sorted(OPENAI_VOICES)


def test_a_voice_tells_how_it_sounds() -> None:
    sound = SpeakerInfo("male", "Scottish", "german", "Deep")
    info = replace(FAKE_INFO, languages=("auto", "english", "german"), speaker_infos={"michael": sound})
    with live_server(Engine(FakeRunner(info), EngineConfig(), fake_voices(info=info))) as server:
        url = f"{server.url}/v1/audio/voices"
        heart, michael = httpx.get(url).json()["voices"]
        keys = ("sex", "accent", "language", "languages", "description")
        assert [michael[key] for key in keys] == ["male", "Scottish", "german", ["german", "english"], "Deep"]
        assert [heart[key] for key in keys] == [None, None, None, ["english", "german"], None]
        assert httpx.get(f"{url}/Michael").json() == michael
        (first, second) = httpx.get(f"{server.url}/v1/voices").json()["voices"]
        assert (first["labels"], first["description"]) == ({}, None)
        assert second["labels"] == {"accent": "scottish", "gender": "male", "language": "de"}
        assert second["description"] == "Deep"


def test_a_voice_that_does_not_exist_is_not_found(server: LiveServer) -> None:
    assert httpx.get(f"{server.url}/v1/audio/voices/Alloy").json()["id"] == "heart"
    response = httpx.get(f"{server.url}/v1/audio/voices/nobody")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "voice_not_found")


def test_health_and_readiness_follow_the_engine(server: LiveServer) -> None:
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert httpx.get(f"{server.url}/ready").json() == {"status": "ready"}
    server.engine.drain()
    response = httpx.get(f"{server.url}/ready")
    assert (response.status_code, response.json()) == (503, {"status": "not ready"})
    assert response.headers["retry-after"] == "5"
    assert httpx.get(f"{server.url}/health").status_code == 200


async def test_not_ready_before_the_engine_runs() -> None:
    app = create_app(Engine(FakeRunner(), EngineConfig()), ServerConfig())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200
        body = {"input": "Hello.", "voice": "heart"}
        assert (await client.post("/v1/audio/speech", json=body)).status_code == 503


def test_an_app_needs_an_engine() -> None:
    with pytest.raises(ValueError, match="at least one engine"):
        create_app({}, ServerConfig())


async def speaker_of(info: ModelInfo, voice: str | None) -> str:
    engine = Engine(FakeRunner(info), EngineConfig(), fake_voices(info=info))
    speaker, reference = await References(ServerConfig(), 1).voice_of(SpeechOptions(voice=voice), engine)
    assert reference is None
    return speaker


@pytest.mark.parametrize(
    ("info", "voice", "speaker"),
    [
        (SHIPPED, "Bella", "bella"),
        (SHIPPED, "alloy", "heart"),
        (SHIPPED, "onyx", "fenrir"),
        (SHIPPED, "fable", "george"),
        (SHIPPED, "sage", "emma"),
        (QWEN, "ONYX", "uncle_fu"),
        (QWEN, "alloy", "serena"),
        (UNKNOWN, "alloy", "x"),
        (UNKNOWN, "ash", "y"),
        (DESIGN, "alloy", ""),
        (DESIGN, None, ""),
    ],
)
async def test_voices_resolve(info: ModelInfo, voice: str | None, speaker: str) -> None:
    assert await speaker_of(info, voice) == speaker


@pytest.mark.parametrize("info", [SHIPPED, QWEN, UNKNOWN])
async def test_every_openai_voice_is_a_speaker(info: ModelInfo) -> None:
    assert {await speaker_of(info, voice) for voice in OPENAI_VOICES} <= set(info.speakers)


async def test_a_speaker_comes_before_an_alias() -> None:
    assert await speaker_of(replace(FAKE_INFO, speakers=("heart", "alloy")), "alloy") == "alloy"


@pytest.mark.parametrize(
    ("info", "voice"), [(SHIPPED, "vivian"), (DESIGN, "heart"), (SHIPPED, "a(2)+b(1)"), (SHIPPED, None)]
)
async def test_an_unknown_voice_is_refused(info: ModelInfo, voice: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        await speaker_of(info, voice)
    assert (caught.value.status, caught.value.detail.param) == (400, "voice")
