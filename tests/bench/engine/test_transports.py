"""The transports that are compared carry the same messages."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest
from vivavoce_bench.engine.transports import CELLS_BYTES, TRANSPORTS, report
from vivavoce_engine.process.wire import Report


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory(create=True, size=CELLS_BYTES)
    yield memory
    memory.close()
    memory.unlink()


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_report_arrives_whole(name: str, memory: SharedMemory) -> None:
    sent = [report(pieces, 2) for pieces in (1, 3, 0, 20)]
    for number, message in enumerate(sent):
        for _, chunk in message.events:
            chunk.pcm[:] = number + np.arange(len(chunk.pcm))  # type: ignore[union-attr]
    with ThreadPoolExecutor(2) as both:
        ends = list(both.map(lambda end: TRANSPORTS[name](end, memory), socket.socketpair()))
        sending = both.submit(lambda: [ends[0].send(message) for message in sent])
        for message in sent:
            received = ends[1].receive()
            assert isinstance(received, Report)
            assert received.state == message.state
            np.testing.assert_equal(
                [(each, chunk.pcm, chunk.codes) for each, chunk in received.events],  # type: ignore[union-attr]
                [(each, chunk.pcm, chunk.codes) for each, chunk in message.events],  # type: ignore[union-attr]
            )
        sending.result()
        ends[0].close()
        ends[1].close()
