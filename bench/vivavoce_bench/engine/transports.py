"""Time and CPU of audio between two processes, by transport: `python -m vivavoce_bench.engine.transports`.

A message is a Report of an engine process: the pieces of one step for one front. The transports are the Unix socket
that the engine uses (ipc/pipe.py), a pipe of the system, and shared memory, where the socket carries the pickle alone.
Each ends in arrays that the receiver owns.
"""

import argparse
import json
import multiprocessing as mp
import os
import platform
import resource
import socket
import struct
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory

import numpy as np
from vivavoce_engine.batching.line import LoopState, Rates
from vivavoce_engine.batching.messages import AudioChunk
from vivavoce_engine.ipc.pipe import COUNT, Pipe, lengths_size, pack, unpack, unpack_lengths
from vivavoce_engine.process.wire import Report

SIZES = {"1 piece of 1 frame": (1, 1), "8 pieces of 4 frames": (8, 4), "32 pieces of 8 frames": (32, 8)}
SAMPLES_PER_FRAME, CODES_PER_FRAME = 1920, 16
SLOTS, SLOT_BYTES = 8, 4 * 2**20
CELLS_BYTES = SLOTS * SLOT_BYTES + 8
"""Size of the shared memory: the slots, and the number of those that have been read."""


def report(pieces: int, frames: int) -> Report:
    """A report with pieces of speech of this many frames each."""
    pcm = np.zeros(frames * SAMPLES_PER_FRAME, np.float32)
    codes = np.zeros((frames, CODES_PER_FRAME), np.int16)
    return Report(LoopState(Rates()), tuple((number, AudioChunk(pcm.copy(), codes.copy())) for number in range(pieces)))


class SocketEnd(Pipe):
    """The engine's own transport."""

    def __init__(self, end: socket.socket, _: SharedMemory) -> None:
        super().__init__(end)


class PipeEnd:
    """A pipe of the system for each direction; the socket only tells the other end's descriptors."""

    def __init__(self, end: socket.socket, _: SharedMemory) -> None:
        theirs, self._out = os.pipe()
        with end:
            socket.send_fds(end, [b"x"], [theirs])
            self._in = socket.recv_fds(end, 1, 1)[1][0]
        os.close(theirs)

    def send(self, message: object) -> None:
        """Writes a message; waits while the other end does not read."""
        for part in pack(message):
            view = memoryview(part)
            while view:
                view = view[os.write(self._out, view) :]

    def receive(self) -> object:
        """The next message."""
        lengths = unpack_lengths(self._read(lengths_size(self._read(COUNT.size))))
        return unpack([self._read(length) for length in lengths])

    def close(self) -> None:
        """Closes this end."""
        os.close(self._out)
        os.close(self._in)

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            view = view[os.readv(self._in, [view]) :]
        return data


class SharedEnd:
    """Arrays through a ring of slots in shared memory; the last eight bytes count the slots that are free again."""

    def __init__(self, end: socket.socket, memory: SharedMemory) -> None:
        self._pipe = Pipe(end)
        assert memory.buf is not None, "it is open"
        self._memory = memory.buf
        self._sent = self._received = 0

    def close(self) -> None:
        """Closes this end. The memory belongs to the caller."""
        self._pipe.close()

    def send(self, message: object) -> None:
        """Copies arrays into the next slot, once it is free, and sends the rest over the socket."""
        head, *arrays = pack(message)
        while arrays and self._sent - struct.unpack_from("q", self._memory, SLOTS * SLOT_BYTES)[0] >= SLOTS:
            time.sleep(0)
        at = self._sent % SLOTS * SLOT_BYTES
        for array in arrays:
            self._memory[at : at + len(array)] = array
            at += len(array)
        self._sent += bool(arrays)
        self._pipe.send(head)

    def receive(self) -> object:
        """The next message, with copies of its arrays."""
        head = self._pipe.receive()
        assert isinstance(head, bytes)
        lengths = unpack_lengths(head[COUNT.size : COUNT.size + lengths_size(head[: COUNT.size])])
        body, at = head[-lengths[0] :], self._received % SLOTS * SLOT_BYTES
        arrays = []
        for length in lengths[1:]:
            arrays.append(bytearray(self._memory[at : at + length]))
            at += length
        if arrays:
            self._received += 1
            struct.pack_into("q", self._memory, SLOTS * SLOT_BYTES, self._received)
        return unpack([body, *arrays])


TRANSPORTS: dict[str, Callable[[socket.socket, SharedMemory], SocketEnd | PipeEnd | SharedEnd]] = {
    "unix socket": SocketEnd,
    "pipe": PipeEnd,
    "shared memory": SharedEnd,
}


def cpu_s() -> float:
    """CPU time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def receiver(name: str, end: socket.socket, memory: SharedMemory, count: int) -> None:
    """The other process: answers each of `count` messages, then takes as many at once and tells its CPU time."""
    there = TRANSPORTS[name](end, memory)
    for _ in range(count):
        there.receive()
        there.send("heard")
    before_s = cpu_s()
    for _ in range(count):
        there.receive()
    there.send(cpu_s() - before_s)


def measure(name: str, pieces: int, frames: int, count: int) -> dict[str, float]:
    """Median time to an answer, and throughput and CPU of a stream of messages."""
    message = report(pieces, frames)
    audio_s = count * pieces * frames * SAMPLES_PER_FRAME / 24000
    memory = SharedMemory(create=True, size=CELLS_BYTES)
    mine, other = socket.socketpair()
    process = mp.get_context("fork").Process(target=receiver, args=(name, other, memory, count))
    process.start()
    other.close()
    try:
        here = TRANSPORTS[name](mine, memory)
        times_s = []
        for _ in range(count):
            started_s = time.perf_counter()
            here.send(message)
            here.receive()
            times_s.append(time.perf_counter() - started_s)
        started_s, before_s = time.perf_counter(), cpu_s()
        for _ in range(count):
            here.send(message)
        sender_s = cpu_s() - before_s
        receiver_s = here.receive()
        took_s = time.perf_counter() - started_s
        here.close()
    finally:
        process.join()
        memory.close()
        memory.unlink()
    assert isinstance(receiver_s, float)
    return {
        "answer_us": round(1e6 * float(np.median(times_s)), 1),
        "audio_s_per_s": round(audio_s / took_s),
        "sender_cpu_us_per_audio_s": round(1e6 * sender_s / audio_s, 1),
        "receiver_cpu_us_per_audio_s": round(1e6 * receiver_s / audio_s, 1),
    }


def main() -> None:
    """Entry point: prints the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="messages of each size")
    count = parser.parse_args().count
    figures = {size: {name: measure(name, *shape, count) for name in TRANSPORTS} for size, shape in SIZES.items()}
    print(json.dumps({"python": platform.python_version(), "load": os.getloadavg()[0], "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
