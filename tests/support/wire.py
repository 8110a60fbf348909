"""Bytes over a bare socket, as no well-behaved client sends them."""

import json
import socket
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.waiting import HUNG_S


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return error


def connected(url: str) -> socket.socket:
    """A connection to a server."""
    parsed = httpx.URL(url)
    client = socket.create_connection((parsed.host, parsed.port or 80), HUNG_S)
    client.settimeout(HUNG_S)
    return client


def received(client: socket.socket) -> bytes:
    """All bytes until the server ends the connection."""
    heard = b""
    try:
        while piece := client.recv(2**16):
            heard += piece
    except ConnectionResetError:
        pass
    return heard


def parsed(heard: bytes) -> Answer:
    """The answer in the bytes of a connection that ended behind it."""
    head, _, body = heard.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(int(status.split()[1]), headers, body)


def exchange(url: str, sent: bytes) -> Answer:
    """Sends bytes, and reads until the server ends the connection."""
    with connected(url) as client:
        client.sendall(sent)
        return parsed(received(client))


def request(method: str, target: str, *lines: str, body: bytes = b"", host: str = "localhost") -> bytes:
    """A request whose connection ends behind its answer."""
    length = [f"Content-Length: {len(body)}"] if body else []
    head = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *lines, *length, "", ""]
    return "\r\n".join(head).encode("latin-1") + body


def handshake(path: str, *lines: str, host: str = "localhost") -> bytes:
    """The head of a WebSocket's handshake."""
    head = [f"GET {path} HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade"]
    head += ["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13", *lines, "", ""]
    return "\r\n".join(head).encode("latin-1")
