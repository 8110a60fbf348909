"""Host, Origin and key are checked before a body is read, a place is taken, or anything is stored."""

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr, ValidationError
from vivavoce_server import ServerConfig, create_app
from vivavoce_server.door import PUBLIC
from vivavoce_server.server_names import ServerNames
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.cloning import VOICES, recording, storing_server
from tests.support.live_server import LiveServer, fake_engine, live_server
from tests.support.live_socket import dial
from tests.support.wire import connected, exchange, handshake, parsed, request

KEY = "the-key"
SPEECH = "/v1/audio/speech"
SOCKETS = (
    "/v1/audio/speech/stream",
    "/v1/text-to-speech/heart/stream-input",
    "/v1/text-to-speech/heart/multi-stream-input",
    "/v1/realtime",
)
EVIL = "evil.example:8501"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


@pytest.fixture(scope="module")
def keyed() -> Iterator[LiveServer]:
    with live_server(config=ServerConfig(api_keys=(SecretStr(KEY),))) as running:
        yield running


# ---- Host


@pytest.mark.parametrize(
    ("bound", "allowed", "admitted", "refused"),
    [
        (
            "127.0.0.1",
            [],
            ["localhost", "localhost:8000", "LOCALHOST.:80", "a.localhost", "127.0.0.1:1", "127.8.8.8", "[::1]:8000",
             "host.docker.internal:8000", "host.containers.internal"],
            [EVIL, "localhost.evil.example", "x", "10.1.2.3", "evil.local", "", "127.0.0.1.evil.net", "a@localhost",
             "evil.internal", "host.docker.internal.evil.example"],
        ),
        ("192.168.1.5", [], ["192.168.1.5:80", "localhost", "10.1.2.3", "[fe80::1]"], [EVIL, "[::1", "::1", "a b"]),
        (
            "0.0.0.0",
            [],
            ["10.1.2.3:8000", "vivavoce:8000", "box.local", "host.docker.internal", socket.gethostname(), "nas.home",
             "speech.voice.svc.cluster.local:8000", "raspberrypi", "box.localdomain"],
            [EVIL, "evil.localhost.example", "evil.com.", "localevil.example"],
        ),
        ("::", ["speech.example", "*.inside.example"], ["speech.example:443", "a.b.inside.example", "Speech.Example"],
         ["a.speech.example", "inside.example", "xinside.example"]),
        ("127.0.0.1", ["*"], [EVIL, "x"], []),
    ],
)  # fmt: skip
def test_names(bound: str, allowed: list[str], admitted: list[str], refused: list[str]) -> None:
    names = ServerNames(bound, allowed)
    assert [host for host in admitted + refused if names.admit(host)] == admitted


@pytest.mark.parametrize("entry", ["http://a.example", "a.example:80", "a.*.example", "*a.example", "a b", "a/b"])
def test_an_entry_that_is_no_name_is_refused(entry: str) -> None:
    with pytest.raises(ValidationError, match="is no name of a host"):
        ServerConfig(allowed_hosts=(entry,))


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", "/v1/audio/voices"), ("DELETE", f"{VOICES}/ada"), ("POST", SPEECH), ("GET", "/metrics")],
)
def test_a_rebound_name_reaches_nothing(server: LiveServer, method: str, path: str) -> None:
    answer = exchange(server.url, request(method, path, f"Origin: http://{EVIL}", host=EVIL))
    assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")
    assert "--allowed-hosts" in answer.error["message"]
    assert len(answer.headers["x-request-id"]) == 32


@pytest.mark.parametrize("path", SOCKETS)
def test_a_rebound_name_opens_no_socket(server: LiveServer, path: str) -> None:
    answer = exchange(server.url, handshake(path, f"Origin: http://{EVIL}", host=EVIL))
    assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")


def test_probes_may_use_any_name(server: LiveServer) -> None:
    assert exchange(server.url, request("GET", "/health", host="anything.example")).status == 200
    assert exchange(server.url, request("GET", "/ready", host="anything.example")).status == 200


def test_keys_make_names_free_until_the_operator_lists_some(keyed: LiveServer) -> None:
    bearer = f"Authorization: Bearer {KEY}"
    assert exchange(keyed.url, request("GET", "/v1/models", bearer, host="speech.example")).status == 200
    config = ServerConfig(api_keys=(SecretStr(KEY),), allowed_hosts=("speech.example",))
    with live_server(config=config) as listed:
        assert exchange(listed.url, request("GET", "/v1/models", bearer, host="speech.example")).status == 200
        assert exchange(listed.url, request("GET", "/v1/models", bearer, host="localhost")).status == 200
        assert exchange(listed.url, request("GET", "/v1/models", bearer, host="other.example")).status == 403


# ---- Origin


FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:1"},
    {"Origin": "http://["},
    {"Origin": ""},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "https://localhost:80"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_form_of_another_site_changes_nothing(tmp_path: Path, headers: dict[str, str]) -> None:
    folder = tmp_path / "voices"
    with storing_server(folder) as server, httpx.Client(base_url=server.url) as client:
        form = {"name": "ada", "consent": "Yes."}
        answers = [
            client.post(VOICES, data=form, files={"audio_sample": recording(0)}, headers=headers),
            client.post(VOICES, data=form, headers=headers),
            client.delete(f"{VOICES}/ada", headers=headers),
            client.post(SPEECH, content=b'{"input": "Hi!"}', headers={**headers, "Content-Type": "text/plain"}),
            client.post(f"{SPEECH}/batch", json={"items": [{"input": "Hi!"}]}, headers=headers),
            client.post("/v1/text-to-speech/heart", json={"text": "Hi!"}, headers=headers),
        ]
        assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [
            (403, "origin_not_allowed")
        ] * len(answers)
        assert not folder.exists() or not list(folder.iterdir())
        assert client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("path", SOCKETS)
async def test_a_page_of_another_site_opens_no_socket(server: LiveServer, path: str, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(server.url.replace("http", "ws") + path, proxy=None, additional_headers=headers)
    assert refused.value.response.status_code == 403
    assert server.service.live_sessions == 0


def test_its_own_page_and_listed_pages_may_speak() -> None:
    with live_server(config=ServerConfig(cors_origins=("https://good.example",))) as server:
        for headers in (
            {"Origin": server.url, "Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "none"},
            {"Origin": "https://good.example", "Sec-Fetch-Site": "cross-site"},
        ):
            body = {"input": "Hi!", "voice": "heart"}
            assert httpx.post(server.url + SPEECH, json=body, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("host", "headers"),
    [
        ("127.0.0.1:8000", {"Origin": "https://speech.example", "Sec-Fetch-Site": "same-origin"}),  # nginx's default
        ("127.0.0.1:8000", {"Origin": "chrome-extension://abcdefgh", "Sec-Fetch-Site": "none"}),
        ("10.1.2.3:80", {"Origin": "http://10.1.2.3"}),
        ("10.1.2.3:443", {"Origin": "https://10.1.2.3"}),
    ],
)
def test_its_own_page_behind_a_proxy_and_an_extension_may_speak(host: str, headers: dict[str, str]) -> None:
    with live_server(config=ServerConfig(allowed_hosts=("*",))) as server:
        body = {"input": "Hi!", "voice": "heart"}
        assert httpx.post(server.url + SPEECH, json=body, headers={"Host": host, **headers}).status_code == 200


async def test_a_key_is_deliberate_whatever_the_origin(keyed: LiveServer) -> None:
    headers = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
    body = {"input": "Hi!", "voice": "heart"}
    bearer = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=keyed.url) as client:
        assert (await client.post(SPEECH, json=body, headers={**headers, **bearer})).status_code == 200
        assert (await client.post(SPEECH, json=body, headers=headers)).status_code == 401
    async with dial(keyed, f"?api_key={KEY}", additional_headers=headers) as socket:
        await socket.configure()


# ---- key


def test_all_but_public_paths_want_a_key(keyed: LiveServer) -> None:
    app = create_app(fake_engine(), ServerConfig())
    asked = {
        (method, path.replace("{", "").replace("}", ""))
        for path, methods in app.openapi()["paths"].items()
        for method in methods
    }
    assert len(asked) > 20
    with httpx.Client(base_url=keyed.url) as client:
        for method, path in asked:
            status = client.request(method, path).status_code
            assert (status == 401) is (path not in PUBLIC), (method, path)
        for path in (*PUBLIC, "/playground/app.js", "/reference/redoc.standalone.js"):
            assert client.get(path).status_code == 200
        assert client.get("/nothing").status_code == 401
        assert client.post("/health/../v1/audio/voices").status_code == 401


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=x", "text/plain"])
@pytest.mark.parametrize("framing", ["Content-Length: 16000000", "Transfer-Encoding: chunked"])
def test_without_a_key_the_answer_comes_before_the_body(keyed: LiveServer, kind: str, framing: str) -> None:
    head = f"POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n{framing}\r\n\r\n"
    with connected(keyed.url) as client:
        client.sendall(head.encode())
        heard = b""
        while b"\r\n\r\n" not in heard or not heard.endswith(b"}"):
            heard += client.recv(2**16)
    answer = parsed(heard)
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")


def test_a_client_that_sends_a_large_body_first_sees_the_401(keyed: LiveServer) -> None:
    content = b'{"input": "' + b"a" * 8_000_000 + b'"}'
    response = httpx.post(keyed.url + SPEECH, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 401
    expecting = "Expect: 100-continue"
    answer = exchange(keyed.url, request("POST", SPEECH, expecting, "Content-Length: 16000000"))
    assert answer.status == 401


def test_both_lengths_are_refused(server: LiveServer) -> None:
    body = b"5\r\nhello\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = f"POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"
    answer = exchange(server.url, head.encode() + body)
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")
    assert b"HTTP/1.1" not in answer.body
