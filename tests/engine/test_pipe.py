"""Messages between processes arrive as they were sent, with arrays of any kind."""

import fcntl
import resource
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from vivavoce_engine.batching.messages import AudioChunk
from vivavoce_engine.ipc.pipe import LARGE_BYTES, PatientPipe, Pipe, pack

from tests.support.waiting import HUNG_S

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


# ---- a pipe that does not wait


LARGE = np.arange(10**6, dtype=np.float32)
"""More than a socket takes at once."""


@pytest.fixture
def patient() -> Iterator[tuple[PatientPipe, Pipe]]:
    here, there = socket.socketpair()
    pipe, other = PatientPipe(here, stall_s=0.2), Pipe(there)
    yield pipe, other
    pipe.close()
    other.close()


def test_a_message_is_taken_once_all_of_it_has_arrived(ends: tuple[Pipe, Pipe]) -> None:
    here, there = ends
    assert there.take() is None
    whole = b"".join(bytes(part) for part in pack(["hello", LARGE[:5000]]))
    cuts = [0, 3, 4, 11, 20, 40, 1000, len(whole) - 1, len(whole)]
    for begin, end in pairwise(cuts):
        assert there.take() is None
        here._socket.sendall(whole[begin:end])
    here.send("next")
    np.testing.assert_equal(there.take(), ["hello", LARGE[:5000]])
    assert there.take() == "next"
    assert there.take() is None
    here.close()
    with pytest.raises(EOFError, match="gone"):
        there.take()


def test_messages_that_find_no_room_follow_in_their_order(patient: tuple[PatientPipe, Pipe]) -> None:
    pipe, other = patient
    messages = [1, LARGE, 2, [LARGE[:2000]] * 3, 3, LARGE[::-1].copy(), "end"]
    for message in messages:
        pipe.send(message)  # nobody receives meanwhile
    for message in messages:
        np.testing.assert_equal(other.receive(), message)
    pipe.send("again")
    assert other.receive() == "again"


def test_more_arrays_than_one_call_takes(patient: tuple[PatientPipe, Pipe]) -> None:
    pipe, other = patient
    arrays = [np.full(LARGE_BYTES // 4, number, np.float32) for number in range(1200)]
    pipe.send(arrays)
    np.testing.assert_equal(other.receive(), arrays)


def test_an_end_that_takes_nothing_is_shut_down(patient: tuple[PatientPipe, Pipe]) -> None:
    pipe, other = patient
    pipe.send(LARGE)
    assert pipe.has_message(HUNG_S), "the end of all messages"
    with pytest.raises(EOFError):
        pipe.take()
    with pytest.raises(OSError, match="closed"):
        pipe.send("more")
    with pytest.raises(EOFError):
        other.receive()


def test_a_patient_end_that_is_gone_is_told(patient: tuple[PatientPipe, Pipe]) -> None:
    pipe, other = patient
    other.close()
    with pytest.raises(OSError, match="pipe"):
        pipe.send("hello")


def test_closing_does_not_wait_for_the_other_end(patient: tuple[PatientPipe, Pipe]) -> None:
    pipe, other = patient
    pipe._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 3600, 0))
    pipe.send(LARGE)
    pipe.close()
    with pytest.raises(EOFError):
        other.receive()
