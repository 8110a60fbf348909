"""HTTP to the letter, over bare sockets: half-closed connections, requests that are none, and pipelines."""

import json
import socket

import httpx
import pytest
from vivavoce_engine import EngineConfig

from tests.support.live_server import Gate, LiveServer, fake_engine, live_server
from tests.support.live_socket import pcm_of
from tests.support.waiting import wait_until
from tests.support.wire import connected, exchange, handshake, parsed, received, request

SPEECH = "/v1/audio/speech"
JSON = "Content-Type: application/json"


def spoken(text: str, **fields: object) -> bytes:
    body = {"input": text, "voice": "heart", "response_format": "pcm", "seed": 5, **fields}
    return request("POST", SPEECH, JSON, body=json.dumps(body).encode())


def unchunked(body: bytes) -> bytes:
    """The content of a chunked body, which must be whole."""
    content = b""
    while True:
        length, _, rest = body.partition(b"\r\n")
        size = int(length, 16)
        if not size:
            assert rest == b"\r\n"
            return content
        content, body = content + rest[:size], rest[size + 2 :]


def final(heard: bytes) -> bytes:
    """The bytes behind answers of status 100."""
    while heard.startswith(b"HTTP/1.1 100"):
        heard = heard.partition(b"\r\n\r\n")[2]
    return heard


# ---- a client that has sent all, and reads


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nothing"])
def test_a_half_closed_connection_is_answered(server: LiveServer, path: str) -> None:
    with connected(server.url) as client:
        client.sendall(request("GET", path).replace(b"Connection: close\r\n", b""))
        client.shutdown(socket.SHUT_WR)
        assert parsed(final(received(client))).status == (404 if path == "/nothing" else 200)


@pytest.mark.parametrize("stream", [True, False])
def test_a_half_closed_connection_hears_all_of_its_speech(stream: bool) -> None:
    gate = Gate()
    with live_server(fake_engine(before_step=gate)) as server, connected(server.url) as client:
        client.sendall(spoken("Hello there.", stream=stream))
        wait_until(lambda: server.engine.stats().running == 1)
        client.shutdown(socket.SHUT_WR)
        gate.open()
        body = parsed(final(received(client))).body
        assert (unchunked(body) if stream else body) == pcm_of(5, 12)


def test_a_client_may_shut_down_while_it_listens() -> None:
    gate = Gate(hold_from_step=3)
    with live_server(fake_engine(before_step=gate)) as server, connected(server.url) as client:
        client.sendall(spoken("Hello there."))
        heard = client.recv(2**16)
        client.shutdown(socket.SHUT_WR)
        wait_until(lambda: any(connection._has_sent_all for connection in server.connections()))
        gate.open()
        assert unchunked(parsed(heard + received(client)).body) == pcm_of(5, 12)


def test_a_pipeline_is_answered_whole_behind_its_end(server: LiveServer) -> None:
    first = spoken("Hi!").replace(b"Connection: close\r\n", b"")
    with connected(server.url) as client:
        client.sendall(first + first + request("GET", "/health"))
        client.shutdown(socket.SHUT_WR)
        heard = received(client)
    assert heard.count(b"HTTP/1.1 200 OK") == 3
    assert b'\r\n\r\n{"status":"ok",' in heard


def test_a_pipelined_post_behind_long_speech_gets_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce_server.uvicorn_sockets.BODY_S", 0.1)
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with live_server() as server, connected(server.url) as client:
        client.sendall(spoken("Hello there, you.").replace(b"Connection: close\r\n", b"") + head)
        heard = received(client)
        assert unchunked(parsed(heard).body) == pcm_of(5, 17)


# ---- what is no HTTP


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200 + b"\r\n\r\n", 400),
        (b"HELLO\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5, 6\r\n\r\nhello", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: +5\r\n\r\nhello", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000, 431),
        (b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ],
    ids=range(12),
)
def test_what_is_no_http_gets_an_error_object(server: LiveServer, sent: bytes, status: int) -> None:
    answer = exchange(server.url, sent)
    assert (answer.status, answer.error["code"]) == (status, "invalid_request")
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.headers["x-request-id"]) == 32
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_the_same_length_twice_is_one_length(server: LiveServer) -> None:
    body = b'{"input": "Hi!", "voice": "heart"}'
    assert exchange(server.url, request("POST", SPEECH, JSON, f"Content-Length: {len(body)}", body=body)).status == 200


@pytest.mark.parametrize(
    ("removed", "status"),
    [(b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n", 400), (b"Sec-WebSocket-Version: 13\r\n", 400)],
)
def test_a_wrong_handshake_gets_an_error_object(server: LiveServer, removed: bytes, status: int) -> None:
    answer = exchange(server.url, handshake("/v1/audio/speech/stream").replace(removed, b""))
    assert (answer.status, answer.error["code"]) == (status, "invalid_handshake")
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.headers["x-request-id"]) == 32


def test_a_client_that_leaves_altogether_is_noticed_before_any_audio() -> None:
    with (
        live_server(fake_engine(EngineConfig(max_streams=1), before_step=(gate := Gate()))) as server,
        connected(server.url) as client,
    ):
        client.sendall(spoken("Hello."))
        wait_until(lambda: server.engine.stats().running == 1)
        client.close()
        wait_until(lambda: server.service.speaking == 0)
        gate.open()
