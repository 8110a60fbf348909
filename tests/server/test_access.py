"""Keys, their limits, CORS, and the accepted sizes."""

import asyncio
import contextlib
from pathlib import Path

import httpx
import openai
import pytest
from pydantic import SecretStr
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_server import ServerConfig
from vivavoce_server.access import Caller, KeyEntry, Keyring, load_keyring
from vivavoce_server.config import load_settings
from vivavoce_server.errors import ApiError

from tests.support.cloning import as_base64, recording
from tests.support.live_server import Gate, fake_engine, live_server
from tests.support.live_socket import dial
from tests.support.waiting import wait_until

BODY = {"input": "Hello.", "voice": "heart"}
KEYS = (SecretStr("first"), SecretStr("second"))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "headers", [{}, bearer("wrong"), {"Authorization": "Bearer"}, bearer("first2"), {"Authorization": "Basic first"}]
)
def test_without_a_known_key_nothing_but_health_answers(headers: dict[str, str]) -> None:
    with live_server(config=ServerConfig(api_keys=KEYS)) as server, httpx.Client(base_url=server.url) as client:
        refused = [
            client.post("/v1/audio/speech", json=BODY, headers=headers),
            client.post("/v1/audio/speech/batch", json={**BODY, "items": []}, headers=headers),
            client.get("/v1/models", headers=headers),
            client.get("/v1/audio/voices", headers=headers),
            client.get("/metrics", headers=headers),
        ]
        for response in refused:
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            error = response.json()["error"]
            assert error.keys() == {"message", "type", "param", "code"}
            assert error["code"] == "invalid_api_key"
        assert client.get("/health", headers=headers).status_code == 200
        assert client.get("/ready", headers=headers).status_code == 200


@pytest.mark.parametrize("key", ["first", "second"])
def test_every_key_opens(key: str) -> None:
    with live_server(config=ServerConfig(api_keys=KEYS)) as server:
        response = httpx.post(f"{server.url}/v1/audio/speech", json=BODY, headers=bearer(key))
        assert response.status_code == 200
        with (
            pytest.raises(openai.AuthenticationError),
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client,
        ):
            client.models.list()


def test_keys_come_from_the_environment_and_stay_out_of_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVAVOCE_API_KEYS", "one, two,")
    config, _ = load_settings({})
    assert [key.get_secret_value() for key in config.api_keys] == ["one", "two"]
    assert "one" not in str(config).replace("None", "")


def test_keys_come_from_a_file_with_their_limits(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text('[alice]\nkey = "a"\nmax_concurrent = 1\n[bob]\nkey = "b"\n', encoding="utf-8")
    keyring = load_keyring(ServerConfig(api_keys_file=path))
    assert [keyring.find(key).name for key in ("a", "b")] == ["alice", "bob"]
    with keyring.find("a").speaking(), pytest.raises(ApiError), keyring.find("a").speaking():
        pass
    with keyring.find("b").speaking(), keyring.find("b").speaking():
        pass


@pytest.mark.parametrize(
    "text", ["[a]\nkey = 1", "[a]", 'a = "b"', "[a", "", '[a]\nkey = "x"\nmax = 1', '[a]\nkey = "x"\n[b]\nkey = "x"']
)
def test_a_bad_file_of_keys_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"keys\.toml|given twice"):
        load_keyring(ServerConfig(api_keys_file=path))


def test_a_missing_file_of_keys_does_not_open_the_server(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing"):
        load_keyring(ServerConfig(api_keys_file=tmp_path / "nothing"))


def test_requests_a_minute() -> None:
    now_s = 100.0
    caller = Caller("x", KeyEntry(key=SecretStr("k"), requests_per_minute=2), clock=lambda: now_s)
    for _ in range(2):
        with caller.speaking():
            pass
    with pytest.raises(ApiError) as refused, caller.speaking():
        pass
    assert (refused.value.status, refused.value.retry_after_s) == (429, 30.0)
    now_s += 30
    with caller.speaking():
        pass
    now_s += 60
    with caller.speaking(requests=6):  # a batch may empty the bucket, and owes the rest
        pass
    with pytest.raises(ApiError) as refused, caller.speaking():
        pass
    assert refused.value.retry_after_s == 150.0


async def test_a_keys_own_limit_is_429_and_others_go_on() -> None:
    gate = Gate()
    config = ServerConfig(api_keys=KEYS, key_max_concurrent=1)
    with live_server(fake_engine(before_step=gate), config) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:

            async def speak(key: str) -> httpx.Response:
                return await client.post("/v1/audio/speech", json=BODY, headers=bearer(key))

            first = asyncio.create_task(speak("first"))
            await asyncio.to_thread(wait_until, lambda: server.engine.stats().running == 1)
            refused = await speak("first")
            other = asyncio.create_task(speak("second"))
            await asyncio.to_thread(wait_until, lambda: server.engine.stats().queued == 1)
            gate.open()
            responses = [await first, await other, await speak("first")]
    assert [response.status_code for response in responses] == [200, 200, 200]
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json() == {
        "error": {
            "message": "Rate limit reached: this key may have 1 running at once",
            "type": "rate_limit_error",
            "param": None,
            "code": "rate_limit_exceeded",
        }
    }


def test_the_engine_is_told_whose_request_it_is() -> None:
    plans: list[Plan] = []
    with live_server(fake_engine(before_step=plans.append), ServerConfig(api_keys=KEYS)) as server:
        httpx.post(f"{server.url}/v1/audio/speech", json=BODY, headers=bearer("second"))
        batch = {"voice": "heart", "items": [{"input": "Hello."}]}
        httpx.post(f"{server.url}/v1/audio/speech/batch", json=batch, headers=bearer("first"))
    started = [sequence.pending.request.client for plan in plans for sequence in plan.start]
    assert started == ["key 2", "key 1"]


def test_cors_is_off_until_an_origin_is_named() -> None:
    origin = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    with live_server() as server:
        assert "access-control-allow-origin" not in httpx.get(f"{server.url}/v1/models", headers=origin).headers
    with live_server(config=ServerConfig(cors_origins=("https://app.example",), api_keys=KEYS)) as server:
        asked = httpx.options(f"{server.url}/v1/audio/speech", headers=origin)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == "https://app.example"
        got = httpx.post(f"{server.url}/v1/audio/speech", json=BODY, headers={**origin, **bearer("first")})
        assert got.headers["access-control-allow-origin"] == "https://app.example"
        assert got.headers["access-control-expose-headers"] == "*"
        other = httpx.get(f"{server.url}/v1/models", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_413(chunked: bool) -> None:
    with live_server(config=ServerConfig(max_body_bytes=1000)) as server:
        body = b'{"input": "' + b"a" * 2000 + b'", "voice": "heart"}'
        content = iter([body]) if chunked else body
        headers = {"Content-Type": "application/json"}
        response = httpx.post(f"{server.url}/v1/audio/speech", content=content, headers=headers)
        assert response.status_code == 413
        assert response.json() == {
            "error": {
                "message": "The body is larger than 1000 bytes",
                "type": "invalid_request_error",
                "param": None,
                "code": "body_too_large",
            }
        }
        assert httpx.post(f"{server.url}/v1/audio/speech", json=BODY).status_code == 200


def test_endless_headers_are_refused() -> None:
    with live_server() as server:
        # The server may answer and close before it has read all, which the client then sees as a broken connection.
        with contextlib.suppress(httpx.TransportError):
            response = httpx.get(f"{server.url}/health", headers={"X-Long": "a" * 200_000})
            assert response.status_code in (400, 431)
        assert httpx.get(f"{server.url}/health").status_code == 200


async def test_items_of_a_batch_are_requests_of_their_key() -> None:
    gate = Gate()
    config = ServerConfig(api_keys=KEYS, key_max_concurrent=2)
    with live_server(fake_engine(before_step=gate), config) as server:
        async with httpx.AsyncClient(base_url=server.url, headers=bearer("first")) as client:
            items = [{"input": "Hello."}] * 6
            batch = asyncio.create_task(client.post("/v1/audio/speech/batch", json={"voice": "heart", "items": items}))
            stats = server.engine.stats
            await asyncio.to_thread(wait_until, lambda: stats().running + stats().queued == 2)
            beside = await client.post("/v1/audio/speech", json=BODY)
            gate.open()
            answer = await batch
            assert (beside.status_code, answer.json()["succeeded"]) == (429, 6)
            assert max(gate.batches) == 2
            assert (await client.post("/v1/audio/speech", json=BODY)).status_code == 200


async def test_recordings_on_a_socket_are_requests_of_their_key() -> None:
    config = ServerConfig(api_keys=KEYS, key_requests_per_minute=2)
    audio = as_base64(recording(0))
    with live_server(config=config) as server:
        async with dial(server, "?api_key=first") as socket:
            await socket.configure(voice=None, ref_audio=audio)
            for _ in range(2):
                await socket.send("session.config", ref_audio=audio)
            assert (await socket.error())["code"] == "rate_limit_exceeded"
            await socket.send("session.config", voice="heart", seed=5)
            await socket.say("Hi!")
            assert (await socket.error())["code"] == "rate_limit_exceeded"


def test_a_key_with_half_a_character_is_not_known() -> None:
    keyring = Keyring([("alice", KeyEntry(key=SecretStr("sk-a")))])
    with pytest.raises(ApiError) as refused:
        keyring.find("\ud800")
    assert refused.value.status == 401
