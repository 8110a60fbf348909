"""HEAD, OPTIONS, and targets that are whole URLs, on every route."""

import httpx
import pytest
from pydantic import SecretStr
from vivavoce_server import ServerConfig, create_app
from vivavoce_server.door import PUBLIC

from tests.support.live_server import LiveServer, fake_engine, live_server
from tests.support.wire import connected, exchange, parsed, request

GETS = [
    path.replace("{voice_id}", "heart").replace("{model}", "fake")
    for path, methods in create_app(fake_engine(), ServerConfig()).openapi()["paths"].items()
    if "get" in methods
]
STEADY = frozenset({"content-length", "content-type", "allow", "cache-control", "etag"})


@pytest.mark.parametrize(
    "path", [*GETS, *sorted(PUBLIC - set(GETS)), "/playground/app.js", "/v1/nothing", "/v1/audio/speech"]
)
def test_head_is_get_without_a_body(server: LiveServer, path: str) -> None:
    head, get = (exchange(server.url, request(method, path)) for method in ("HEAD", "GET"))
    assert head.status == get.status
    assert head.body == b""
    assert get.body
    if path != "/metrics":  # it counts what happens meanwhile
        assert all(head.headers.get(name) == get.headers.get(name) for name in STEADY)


def test_a_connection_goes_on_behind_a_head(server: LiveServer) -> None:
    with httpx.Client(base_url=server.url) as client:
        for path in GETS:
            assert client.head(path).content == b""
            assert client.get("/health").json()["status"] == "ok"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/health", "GET, HEAD, OPTIONS"),
        ("/", "GET, HEAD, OPTIONS"),
        ("/v1/audio/speech", "POST, OPTIONS"),
        ("/v1/audio/voices", "GET, POST, HEAD, OPTIONS"),
        ("/v1/audio/voices/ada", "GET, DELETE, HEAD, OPTIONS"),
        ("*", "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"),
    ],
)
def test_options_names_the_methods(path: str, allowed: str) -> None:
    with live_server(config=ServerConfig(api_keys=(SecretStr("k"),))) as server:
        answer = exchange(server.url, request("OPTIONS", path))
        assert (answer.status, answer.headers["allow"], answer.body) == (204, allowed, b"")
        assert "content-length" not in answer.headers


def test_options_of_nothing_is_a_404(server: LiveServer) -> None:
    answer = exchange(server.url, request("OPTIONS", "/nothing"))
    assert (answer.status, answer.error["code"]) == (404, "not_found")


def test_a_405_names_all_methods_of_its_path(server: LiveServer) -> None:
    answer = exchange(server.url, request("PATCH", "/v1/audio/voices"))
    assert (answer.status, answer.headers["allow"]) == (405, "GET, POST, HEAD, OPTIONS")


@pytest.mark.parametrize("scheme", ["http", "HTTPS"])
def test_a_target_may_be_a_whole_url(server: LiveServer, scheme: str) -> None:
    answer = exchange(server.url, request("GET", f"{scheme}://localhost:80/v1/models?x=1", host="evil.example"))
    assert answer.status == 200
    assert exchange(server.url, request("GET", f"{scheme}://localhost", host="a.example")).status == 200
    answer = exchange(server.url, request("GET", f"{scheme}://evil.example/v1/models"))
    assert (answer.status, answer.error["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize(
    "target", ["v1/models", "ftp://localhost/", "localhost:80", "*", "http://a@localhost/", "http:///x"]
)
def test_a_target_that_is_neither_path_nor_url_is_a_400(server: LiveServer, target: str) -> None:
    answer = exchange(server.url, request("GET", target))
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")


def test_a_handshake_may_have_a_whole_url(server: LiveServer) -> None:
    with connected(server.url) as client:
        lines = ["Upgrade: websocket", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13"]
        head = request("GET", "ws://localhost/v1/audio/speech/stream", *lines)
        client.sendall(head.replace(b"Connection: close", b"Connection: Upgrade"))
        assert parsed(client.recv(2**16)).status == 101
