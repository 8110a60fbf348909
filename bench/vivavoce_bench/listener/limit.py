"""The limit of the load generator itself: its lateness by rate, at a server that does nothing but answer.

    python -m vivavoce_bench.listener.limit --generators 1 --rate 50 100 200 400 [-o FILE]

The server is a process of its own on this machine. It sends each answer as PIECES pieces of audio, the lengths of which
grow as those of Vivavoce do. Where the generator is on time here, a run at the same rate measures its server.
"""

import argparse
import asyncio
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from vivavoce_client.protocol import SAMPLE_RATE

from vivavoce_bench.listener.generators import Generators
from vivavoce_bench.listener.load import LoadPlan, Poisson, Run
from vivavoce_bench.listener.progress import Progress
from vivavoce_bench.listener.prompts import load_classes
from vivavoce_bench.listener.report import environment, run_json, table, target_json
from vivavoce_bench.listener.servers import Target

PIECES = (1, 1, 2, 4, 8, 16, 32, 7)
"""Frames of each piece: 71, which is 5.7 s of speech."""
PAUSE_S = 0.02
WARMUP_S = 2.0
FRAME = (b"\x00\x20" * 20 + b"\x00\xe0" * 20) * (SAMPLE_RATE * 80 // 1000 // 40)
"""80 ms of a loud tone."""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: audio/pcm\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"


class _Answers(asyncio.Protocol):
    """Answers one request on a connection, without reading more of it than its end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(b"}"):  # the body is one JSON object
            self._send(0)

    def _send(self, piece: int) -> None:
        if self._transport.is_closing():
            return
        audio = FRAME * PIECES[piece]
        self._transport.write((b"" if piece else HEAD) + b"%x\r\n%b\r\n" % (len(audio), audio))
        if piece + 1 < len(PIECES):
            asyncio.get_running_loop().call_later(PAUSE_S, self._send, piece + 1)
        else:
            self._transport.write(b"0\r\n\r\n")
            self._transport.close()


def serve(connection: Connection) -> None:
    """Answers requests until the parent closes the connection. Sends it the port first."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(_Answers, "127.0.0.1", 0, backlog=1024)
        connection.send(server.sockets[0].getsockname()[1])
        ended = asyncio.Event()
        loop.add_reader(connection.fileno(), ended.set)
        await ended.wait()
        server.close()

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


@contextmanager
def answering_server() -> Iterator[str]:
    """Runs the server in a process of its own. Yields its URL."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=serve, args=(its,), daemon=True)
    process.start()
    its.close()
    try:
        yield f"http://127.0.0.1:{mine.recv()}"
    finally:
        mine.close()
        process.join()


def measure(rates: Sequence[float], generators: int, duration_s: float) -> tuple[Target, list[Run]]:
    """Runs each rate in turn."""
    texts = load_classes(["en"])
    progress = Progress()
    with answering_server() as url, Generators(generators, progress.show) as started:
        target = Target("vivavoce", url)
        runs = [started.run(LoadPlan(Poisson(rate), texts, duration_s, WARMUP_S), target) for rate in rates]
    progress.clear()
    return target, runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, nargs="+", default=[50, 100, 200, 400])
    parser.add_argument("--generators", type=int, default=1)
    parser.add_argument("--duration", type=float, default=10)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    target, runs = measure(args.rate, args.generators, args.duration)
    print(table(runs))
    command = environment("python -m vivavoce_bench.listener.limit")
    document = {"bench": "limit", **command, **target_json(target), "runs": [run_json(run) for run in runs]}
    if args.output is not None:
        args.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document))


if __name__ == "__main__":
    main()
