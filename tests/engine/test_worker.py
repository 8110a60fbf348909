"""Reports of the engine's process to the server, and their times."""

import socket
import threading
from collections.abc import Iterator

import pytest
from vivavoce_engine.batching.admission import Admission
from vivavoce_engine.batching.messages import AudioChunk, Finished, Shutdown
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner
from vivavoce_engine.ipc.pipe import Pipe
from vivavoce_engine.model import Parts
from vivavoce_engine.process.fronts import Fronts, RemoteListener
from vivavoce_engine.process.wire import Loaded, Ping, RemoteSubmit, Report
from vivavoce_engine.process.worker import Worker

from tests.support.utterances import pending

FRAMES = 20


@pytest.fixture
def server() -> Iterator[Pipe]:
    """The server's end of the pipe to a worker that runs."""
    here, there = (Pipe(end) for end in socket.socketpair())
    config = EngineConfig()
    parts = Parts(FakeRunner(frames_per_character=FRAMES / 3), {})
    worker = Worker(Fronts(there, None, Loaded(config, "")), parts, config, Admission(config, FAKE_INFO.frame_s))
    thread = threading.Thread(target=worker.run)
    thread.start()
    yield here
    here.send(Shutdown())
    thread.join()
    here.close()
    there.close()


def next_report(server: Pipe) -> Report:
    report = server.receive()
    assert isinstance(report, Report)
    return report


def test_steps_that_give_nobody_a_piece_are_not_reported(server: Pipe) -> None:
    """How long the pieces after the first are depends on how busy the machine is."""
    server.send(RemoteSubmit.of(pending(1, first_chunk_frames=4)))
    pieces: list[int] = []
    reports: list[Report] = []
    while not reports or not any(isinstance(event, Finished) for _, event in reports[-1].events):
        reports.append(next_report(server))
        pieces += (event.frames for _, event in reports[-1].events if isinstance(event, AudioChunk))
    assert (pieces[0], sum(pieces)) == (4, FRAMES)
    assert len(reports) == 1 + len(pieces) < FRAMES
    start = reports[0]
    assert (start.events, start.state.left_queue, start.state.running) == ((), 1, 1), "a start is told at once"
    assert (reports[-1].state.running, reports[-1].state.frames) == (0, FRAMES)


@pytest.mark.parametrize("frames", [1, 4])
def test_a_reader_takes_no_frame_twice_and_none_before_it_is_sent(frames: int) -> None:
    listener = RemoteListener(1)
    listener.count_sent(3)
    listener.read_to(2)
    assert listener.unread_frames == 1
    with pytest.raises(AssertionError):
        listener.read_to(frames)


def test_a_sign_of_life_is_given_without_anything_to_tell(server: Pipe) -> None:
    server.send(Ping())
    assert next_report(server).events == ()
