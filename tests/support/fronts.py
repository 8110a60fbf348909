"""A server of several fronts: which process serves which connection, from what Linux tells in /proc."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen

import httpx

from tests.support.waiting import wait_until

MODULE = "vivavoce_server.fronts.front"
ATTEMPTS = 400


def children_of(pid: int, module: str = MODULE) -> list[int]:
    """Process ids of a process's children that run a module."""
    found = []
    with suppress(OSError):
        told = " ".join(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children"))
        for child in map(int, told.split()):
            with suppress(OSError):
                if module in Path(f"/proc/{child}/cmdline").read_text():
                    found.append(child)
    return found


def front_of(fronts: Sequence[int], connection: socket.socket) -> int | None:
    """The front that has accepted a connection over IPv4; None while none has."""
    ours, theirs = connection.getsockname()[1], connection.getpeername()[1]
    inode = next(
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if (_port(line.split()[1]), _port(line.split()[2])) == (theirs, ours)
    )
    for pid in fronts:
        with suppress(OSError):
            if any(os.readlink(link) == f"socket:[{inode}]" for link in Path(f"/proc/{pid}/fd").iterdir()):
                return pid
    return None


def _port(address: str) -> int:
    return int(address.partition(":")[2], 16)


class Fronts:
    """The fronts of a server that runs as a process."""

    def __init__(self, process: "Popen[str]", url: str) -> None:
        self.process = process
        self.url = url
        self._address = (httpx.URL(url).host, httpx.URL(url).port or 80)

    @property
    def pids(self) -> list[int]:
        return children_of(self.process.pid)

    @contextmanager
    def connected(self, pid: int) -> Iterator[socket.socket]:
        """A connection that this front has accepted."""
        others: list[socket.socket] = []
        try:
            for _ in range(ATTEMPTS):
                connection = socket.create_connection(self._address)
                wait_until(lambda connection=connection: front_of(self.pids, connection) is not None)  # type: ignore[misc]
                if front_of([pid], connection) == pid:
                    with connection:
                        yield connection
                    return
                others.append(connection)  # held, so that the front that has it is the busier one
        finally:
            for other in others:
                other.close()
        raise AssertionError(f"front {pid} accepts no connection")

    def ask(self, pid: int, request: bytes) -> tuple[int, bytes]:
        """Status and body of a request that closes its connection, sent to this front."""
        with self.connected(pid) as connection:
            connection.sendall(request)
            answer = b"".join(iter(lambda: connection.recv(2**16), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body


def request_of(method: str, path: str, body: bytes = b"", key: str = "") -> bytes:
    """A request in HTTP that asks for the end of its connection."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(body)}"]
    lines += ["Content-Type: application/json"] if body else []
    lines += [f"Authorization: Bearer {key}"] if key else []
    return "\r\n".join([*lines, "", ""]).encode() + body
