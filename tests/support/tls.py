"""A proxy that ends TLS in front of a server, for clients that dial nothing else. Its certificate signs itself."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import httpx
from vivavoce_server.listeners import bind

from tests.support.certificates import make_pair
from tests.support.waiting import HUNG_S

PIECE_BYTES = 2**16


@dataclass(frozen=True)
class TlsProxy:
    url: str
    certificate: Path
    """File of the certificate that a client must trust."""


@contextmanager
def tls_in_front(url: str, folder: Path) -> Iterator[TlsProxy]:
    """Passes the bytes of each TLS connection on to the server at this URL. Needs the program openssl."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = make_pair(folder, "localhost")
    context.load_cert_chain(pair.certificate, pair.key)
    target = httpx.URL(url)
    listener = bind("127.0.0.1", 0)
    loops: SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = SimpleQueue()

    async def serve() -> None:
        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection(target.host, target.port)
            await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))

        stopped = asyncio.Event()
        server = await asyncio.start_server(pass_on, sock=listener, ssl=context)
        loops.put((asyncio.get_running_loop(), stopped))
        await stopped.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    loop, stopped = loops.get(timeout=HUNG_S)
    try:
        yield TlsProxy(f"https://127.0.0.1:{listener.getsockname()[1]}", pair.certificate)
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(HUNG_S)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies bytes to their end. Either side's end closes the other."""
    with suppress(ConnectionError, ssl.SSLError):
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.close()
