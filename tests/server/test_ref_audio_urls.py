"""`ref_audio` as a URL: neither a name nor a redirect leads to a request inside the operator's network."""

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import ValidationError
from vivavoce_engine import Overloaded
from vivavoce_engine.voices.reference_audio import MAX_BYTES
from vivavoce_server import ServerConfig, fetching
from vivavoce_server.errors import ApiError
from vivavoce_server.fetch_hosts import FetchHosts, is_public
from vivavoce_server.fetching import Fetcher

FILE = b"a recording" * 1000
INTERNAL = [
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.0.8",
    "198.18.0.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "2001:0:7f00:1::",
    "2001:db8::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%lo",
    "fec0::1",
    "ff02::1",
]
PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "2a00:1450::200e"]


@pytest.mark.parametrize(
    ("address", "public"), [*((address, False) for address in INTERNAL), *((address, True) for address in PUBLIC)]
)
def test_addresses(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public
    assert FetchHosts(["*"]).may_connect(ipaddress.ip_address(address)) is public


@pytest.mark.parametrize(
    ("entry", "scheme", "host", "port", "admitted"),
    [
        ("files.example.com", "https", "files.example.com", 443, True),
        ("files.example.com", "http", "Files.Example.com.", 80, True),
        ("files.example.com", "https", "files.example.com", 8443, False),
        ("files.example.com", "https", "x.files.example.com", 443, False),
        ("files.example.com", "https", "files.example.com.evil.test", 443, False),
        ("files.example.com:8443", "https", "files.example.com", 8443, True),
        ("files.example.com:8443", "https", "files.example.com", 443, False),
        ("*.example.com", "https", "a.b.example.com", 443, True),
        ("*.example.com", "https", "example.com", 443, False),
        ("*.example.com", "https", "badexample.com", 443, False),
        ("*", "http", "anything.test", 80, True),
        ("*", "http", "anything.test", 22, False),
        ("*", "http", "8.8.8.8", 80, True),
        ("*", "http", "127.0.0.1", 80, False),
        ("*", "http", "::1", 80, False),
        ("10.0.0.0/8", "http", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "http", "11.1.2.3", 80, False),
        ("10.0.0.0/8", "http", "name.test", 80, False),
        ("10.1.2.3:9000", "http", "10.1.2.3", 9000, True),
        ("[::1]:9000", "http", "::1", 9000, True),
        ("::1", "http", "::1", 80, True),
    ],
)
def test_the_operators_list(entry: str, scheme: str, host: str, port: int, admitted: bool) -> None:
    assert FetchHosts([entry]).admits(scheme, host, port) is admitted


@pytest.mark.parametrize(
    "entry", ["https://example.com", "example.com/x", "a b", "*x.test", "*.*", "a.*", "x:0", "u@x"]
)
def test_a_wrong_list_is_told_at_the_start(entry: str) -> None:
    with pytest.raises(ValidationError):
        ServerConfig(ref_audio_hosts=(entry,))


# ---- downloads


class FileServer(ThreadingHTTPServer):
    def __init__(self, file: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.file = file
        self.asked: list[tuple[str, str]] = []


class Handler(BaseHTTPRequestHandler):
    """Answers by path; what is asked is noted."""

    server: FileServer

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Host"]))
        port = self.server.server_port
        match self.path:
            case "/file":
                self.answer(200, body=self.server.file)
            case "/moved":
                self.answer(302, {"Location": "/file"})
            case "/away":
                self.answer(302, {"Location": f"http://other.test:{port}/file"})
            case "/inside":
                self.answer(302, {"Location": "http://169.254.169.254/latest/meta-data"})
            case "/round":
                self.answer(307, {"Location": "/round"})
            case "/file-scheme":
                self.answer(302, {"Location": "file:///etc/passwd"})
            case "/packed":
                self.answer(200, {"Content-Encoding": "gzip"}, self.server.file)
            case "/large":
                self.answer(200, {"Content-Length": str(MAX_BYTES + 1)})
            case "/endless":
                self.send_response(200)
                self.end_headers()
                self.pour()
            case _:
                self.answer(404, body=b"no")

    def answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def pour(self) -> None:
        """More than is taken, without saying so before."""
        try:
            for _ in range(MAX_BYTES // 2**16 + 2):
                self.wfile.write(bytes(2**16))
        except (BrokenPipeError, ConnectionResetError):
            pass

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def file_server(file: bytes = FILE) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Its port on 127.0.0.1, and what it was asked."""
    with FileServer(file) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port, server.asked
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Name → addresses, instead of DNS."""
    known: dict[str, list[str]] = {}

    async def resolve(host: str, port: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
        if host not in known:
            raise socket.gaierror("no such name")
        return [ipaddress.ip_address(address) for address in known[host]]

    monkeypatch.setattr(fetching, "resolve", resolve)
    return known


async def test_an_allowed_file_is_fetched_from_the_address_that_was_checked(names: dict[str, list[str]]) -> None:
    names["files.test"] = ["127.0.0.1"]
    with file_server() as (port, asked):
        fetch = Fetcher([f"files.test:{port}", "127.0.0.1"]).fetch
        assert await fetch(f"http://files.test:{port}/file") == FILE
        assert await fetch(f"HTTP://FILES.test:{port}/moved#part") == FILE
    host = f"files.test:{port}"
    assert asked == [("/file", host), ("/moved", host), ("/file", host)]


async def test_the_next_address_is_tried_where_the_first_is_silent(names: dict[str, list[str]]) -> None:
    names["files.test"] = ["127.0.0.2", "127.0.0.1"]
    with file_server() as (port, _):
        fetch = Fetcher([f"files.test:{port}", "127.0.0.0/8"]).fetch
        assert await fetch(f"http://files.test:{port}/file") == FILE


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/away", "another host"),
        ("/inside", "may not fetch"),
        ("/round", "without end"),
        ("/file-scheme", "no plain http"),
        ("/packed", "packed"),
        ("/large", "larger than 10 MiB"),
        ("/endless", "larger than 10 MiB"),
        ("/nothing", "status 404"),
    ],
)
async def test_answers_that_are_not_taken(names: dict[str, list[str]], path: str, words: str) -> None:
    names.update({"files.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]})
    with file_server() as (port, asked):
        await refused(Fetcher([f"files.test:{port}", f"other.test:{port}", "127.0.0.1"]), port, path, words)
        assert {host for _, host in asked} == {f"files.test:{port}"}


async def refused(fetcher: Fetcher, port: int, path: str, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        await fetcher.fetch(f"http://files.test:{port}{path}")
    assert (caught.value.status, caught.value.detail.param) == (400, "ref_audio")


@pytest.mark.parametrize("address", INTERNAL)
async def test_names_that_lead_inside(names: dict[str, list[str]], address: str) -> None:
    """One bad address among good ones is enough."""
    names["files.test"] = ["93.184.216.34", address]
    with pytest.raises(ApiError, match="may not reach"):
        await Fetcher(["files.test"]).fetch("http://files.test/x")


async def test_a_name_that_changes_its_address_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: the connection goes where the check went."""
    answers = iter(["127.0.0.1", "127.0.0.9"])

    async def resolve(host: str, port: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
        return [ipaddress.ip_address(next(answers))]

    monkeypatch.setattr(fetching, "resolve", resolve)
    with file_server() as (port, _):
        fetcher = Fetcher([f"files.test:{port}", "127.0.0.1"])
        assert await fetcher.fetch(f"http://files.test:{port}/file") == FILE
    assert list(answers) == ["127.0.0.9"]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://0/",
        "http://localhost/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://169.254.169.254/latest/meta-data",
        "http://user:secret@files.test/",
        "http://files.test@127.0.0.1/",
        "http://127.0.0.1#@files.test/",
        "http://127.0.0.1\\@files.test/",
        "http:///x",
        "http://[::1/",
        "http://files.test:99999/",
        "https://files.test:22/",
    ],
)
async def test_hosts_in_disguise(url: str) -> None:
    """Any public host is allowed, and names are really resolved: all that is left is the check of the address."""
    with pytest.raises(ApiError) as caught:
        await Fetcher(["*"]).fetch(url)
    assert (caught.value.status, caught.value.detail.param) == (400, "ref_audio")


async def test_without_a_list_nothing_is_fetched(names: dict[str, list[str]]) -> None:
    names["files.test"] = ["93.184.216.34"]
    with pytest.raises(ApiError, match="may not fetch"):
        await Fetcher([]).fetch("https://files.test/x")


async def test_the_environments_proxy_is_not_used(names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    names["files.test"] = ["127.0.0.1"]
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with file_server() as (port, _):
        assert await Fetcher([f"files.test:{port}", "127.0.0.1"]).fetch(f"http://files.test:{port}/file") == FILE


async def test_a_server_that_says_nothing_is_given_up(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "FETCH_S", 0.05)
    names["files.test"] = ["127.0.0.1"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        await refused(Fetcher([f"files.test:{port}", "127.0.0.1"]), port, "/file", "took longer")


async def test_too_many_downloads_are_refused(names: dict[str, list[str]]) -> None:
    names["files.test"] = ["127.0.0.1"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        fetcher = Fetcher([f"files.test:{port}", "127.0.0.1"])
        running = [
            asyncio.create_task(fetcher.fetch(f"http://files.test:{port}/{n}")) for n in range(fetching.MAX_AT_ONCE)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await fetcher.fetch(f"http://files.test:{port}/file")
        for task in running:
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*running, return_exceptions=True)
        )
        with pytest.raises(ApiError):  # there is room again
            await fetcher.fetch("http://elsewhere.test/")
