"""Requests over real sockets, to servers that answer with given bytes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest
from vivavoce_bench.listener.exchange import HttpExchange
from vivavoce_bench.listener.reception import Incomplete

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: audio/pcm; rate=24000\r\nTransfer-Encoding: chunked\r\n\r\n"


class Recorder:
    """An answer as a list of its events."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def sent(self) -> None:
        self.events.append("sent")

    def head(self, status: int, content_type: str) -> None:
        self.events.append((status, content_type))

    def data(self, piece: bytes) -> None:
        self.events.append(piece)

    def end(self) -> None:
        self.events.append("end")


@asynccontextmanager
async def server(*pieces: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that sends these bytes to each request, one after the other, and closes. Yields URL and requests."""
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        requests.append(head + await reader.readexactly(length))
        with suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.02)
            writer.close()
            await writer.wait_closed()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.create_task(answer(reader, writer)))

    answering: list[asyncio.Task[None]] = []
    serving = await asyncio.start_server(note, "127.0.0.1", 0)
    async with serving:
        port = serving.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", requests
        await asyncio.gather(*answering)


async def exchange(url: str, bodies: Sequence[bytes] = (b'{"input": "Hi."}',)) -> list[object]:
    recorder = Recorder()
    http = HttpExchange(url, "/v1/audio/speech", {"Authorization": "Bearer key"})
    for body in bodies:
        await http.send(body, recorder)
    return recorder.events


@pytest.mark.parametrize(
    "pieces",
    [
        [CHUNKED + b"2\r\nab\r\n", b"1\r\nc\r\n0\r\n\r\n"],
        [CHUNKED[:30], CHUNKED[30:] + b"2\r\na", b"b\r\n", b"1\r\nc\r\n", b"0\r\n\r\n"],
        [
            b"HTTP/1.1 100 Continue\r\n\r\n"
            + CHUNKED.replace(b"Transfer-Encoding: chunked", b"Content-Length: 3")
            + b"abc"
        ],
        [CHUNKED.replace(b"Transfer-Encoding: chunked\r\n", b""), b"ab", b"c"],
    ],
)
async def test_an_answer_is_handed_over_as_it_comes(pieces: list[bytes]) -> None:
    async with server(*pieces) as (url, requests):
        first, head, *data, last = await exchange(url + "/prefix")
    assert (first, head, last) == ("sent", (200, "audio/pcm; rate=24000"), "end")
    assert b"".join(each for each in data if isinstance(each, bytes)) == b"abc"
    (request,) = requests
    assert request.startswith(b"POST /prefix/v1/audio/speech HTTP/1.1\r\n")
    assert b"\r\nauthorization: bearer key\r\n" in request.lower()
    assert request.endswith(b'\r\n\r\n{"input": "Hi."}')


async def test_each_request_has_a_connection_of_its_own() -> None:
    async with server(CHUNKED + b"1\r\na\r\n0\r\n\r\n") as (url, requests):
        assert await exchange(url, [b"1", b"2"]) == ["sent", (200, "audio/pcm; rate=24000"), b"a", "end"] * 2
    assert [request[-1:] for request in requests] == [b"1", b"2"]


@pytest.mark.parametrize("pieces", [[], [CHUNKED[:20]], [CHUNKED + b"5\r\nab"], [b"SSH-2.0-OpenSSH\r\n\r\n"]])
async def test_an_answer_that_breaks_off_is_told(pieces: list[bytes]) -> None:
    async with server(*pieces) as (url, _):
        with pytest.raises(Incomplete, match="the connection failed"):
            await exchange(url)


async def test_a_fault_of_the_answer_goes_to_the_one_who_asked() -> None:
    class Picky(Recorder):
        def data(self, piece: bytes) -> None:
            raise ValueError("not what was asked for")

    async with server(CHUNKED + b"1\r\na\r\n0\r\n\r\n") as (url, _):
        http = HttpExchange(url, "/", {})
        with pytest.raises(ValueError, match="not what was asked for"):
            await http.send(b"", Picky())


async def test_no_server_and_no_host() -> None:
    with pytest.raises(Incomplete, match="ConnectionRefusedError"):
        await exchange("http://127.0.0.1:9")
    with pytest.raises(Incomplete, match="there is no host"):
        await exchange("http://nowhere.invalid")
    with pytest.raises(ValueError, match="is not the URL of an HTTP server"):
        HttpExchange("localhost:8000", "/", {})
