"""Messages between processes arrive as they were sent, with arrays of any kind."""

import fcntl
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from vivavoce_engine.batching.messages import AudioChunk
from vivavoce_engine.ipc.pipe import LARGE_BYTES, Pipe, pack

CODES = np.arange(32, dtype=np.int16).reshape(2, 16)


@pytest.fixture
def ends() -> Iterator[tuple[Pipe, Pipe]]:
    here, there = (Pipe(end) for end in socket.socketpair())
    yield here, there
    here.close()
    there.close()


def exchange(ends: tuple[Pipe, Pipe], message: object) -> object:
    with ThreadPoolExecutor(1) as sender:  # a large message does not fit into the socket's own memory
        sent = sender.submit(ends[0].send, message)
        received = ends[1].receive()
        sent.result()
    return received


@pytest.mark.parametrize("samples", [0, 1, LARGE_BYTES // 4 - 1, LARGE_BYTES // 4, 10**6])
def test_arrays_of_any_size(ends: tuple[Pipe, Pipe], samples: int) -> None:
    pcm = np.linspace(-1, 1, samples, dtype=np.float32)
    received = exchange(ends, {"first": AudioChunk(pcm, CODES), "again": [AudioChunk(pcm[::-1], CODES)]})
    assert isinstance(received, dict)
    first, (again,) = received["first"], received["again"]
    np.testing.assert_array_equal(first.pcm, pcm)
    np.testing.assert_array_equal(again.pcm, pcm[::-1])
    assert first.pcm.dtype == np.float32
    assert first.codes.tolist() == again.codes.tolist() == CODES.tolist()


def test_messages_keep_their_order(ends: tuple[Pipe, Pipe]) -> None:
    for number in range(3):
        ends[0].send(number)
    assert [ends[1].receive() for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("turned", [False, True])
def test_a_large_array_is_not_copied_into_the_pickle(ends: tuple[Pipe, Pipe], turned: bool) -> None:
    array = np.arange(10**4, dtype=np.float32).reshape(50, 200)
    array = array.T if turned else array
    np.testing.assert_array_equal(exchange(ends, array), array)
    head, *arrays = pack([array, CODES])
    assert len(head) < LARGE_BYTES
    assert [np.shares_memory(np.frombuffer(view, np.float32), array) for view in arrays] == [True]


def test_an_end_that_is_gone_is_the_end_of_the_messages(ends: tuple[Pipe, Pipe]) -> None:
    ends[0].close()
    with pytest.raises(EOFError, match="gone"):
        ends[1].receive()


def test_it_waits_at_a_high_descriptor(ends: tuple[Pipe, Pipe]) -> None:
    """A server with a thousand clients has no other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    here, there = socket.socketpair()
    high = Pipe(socket.socket(fileno=fcntl.fcntl(here.fileno(), fcntl.F_DUPFD, 2000)))
    here.close()
    try:
        assert not high.has_message(0)
        assert not high.has_message(0.001)
        Pipe(there).send("hello")
        assert high.has_message(None)
        assert high.receive() == "hello"
        there.close()
        assert high.has_message(None), "the end counts as one"
    finally:
        high.close()
        there.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
