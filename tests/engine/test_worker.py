"""Reports of the engine's process to the server, and their times."""

import errno
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from vivavoce_engine.batching.admission import Admission
from vivavoce_engine.batching.line import Waiting
from vivavoce_engine.batching.messages import AudioChunk, Failed, Finished, Shutdown
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import Overloaded
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner
from vivavoce_engine.ipc.pipe import Pipe, pack
from vivavoce_engine.ipc.unix_socket import listen
from vivavoce_engine.model import Parts
from vivavoce_engine.process.fronts import Fronts, RemoteListener
from vivavoce_engine.process.wire import Loaded, Ping, RemoteSubmit, Report
from vivavoce_engine.process.worker import Worker

from tests.support.utterances import pending
from tests.support.waiting import HUNG_S, wait_until

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


# ---- fronts


@pytest.fixture
def address(tmp_path: Path) -> Iterator[Path]:
    """The address of a worker that runs."""
    here, there = (Pipe(end) for end in socket.socketpair())
    config = EngineConfig(max_streams=1, max_queue=1)
    listener, loaded = listen(tmp_path / "worker"), Loaded(config, "the same")
    fronts = Fronts(there, listener, loaded)
    worker = Worker(fronts, Parts(FakeRunner(), {}), config, Admission(config, FAKE_INFO.frame_s))
    thread = threading.Thread(target=worker.run)
    thread.start()
    yield tmp_path / "worker"
    here.send(Shutdown())
    thread.join()
    here.close()
    there.close()


def live(number: int, client: str = "") -> RemoteSubmit:
    """An utterance whose text has not ended, so its row waits for more."""
    each = pending(number, live=True, client=client)
    return RemoteSubmit.of(replace(each, prompt=replace(each.prompt, trailing_ids=tuple(each.trailing.ids))))


def connect(address: Path) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.connect(str(address))
    end.settimeout(HUNG_S)
    return end


def test_a_front_hears_the_settings_first(address: Path) -> None:
    with connect(address) as end:
        loaded = Pipe(end).receive()
        assert isinstance(loaded, Loaded)
        assert (loaded.identity, loaded.config.rows) == ("the same", 1)


def test_a_stranger_is_cut_off(address: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with connect(address) as end:
        assert end.recv(1) == b""


def answers(front: Pipe) -> bool:
    front.send(Ping())  # as a server does once a second
    return bool(next_report(front))


def test_a_front_that_cannot_be_accepted_does_not_end_the_worker(
    address: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: socket.socket) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with connect(address) as one:
        first = Pipe(one)
        assert isinstance(first.receive(), Loaded)
        with monkeypatch.context() as patched:
            patched.setattr(socket.socket, "accept", refuse)
            with connect(address) as two:
                wait_until(lambda: "Too many open files" in caplog.text)
                first.send(Ping())
                assert next_report(first).events == ()
                assert caplog.text.count("Too many") == 1, "it is not tried again at once"
                patched.undo()
                wait_until(lambda: answers(first) and Pipe(two).has_message(0))
                assert isinstance(Pipe(two).receive(), Loaded)


def test_half_a_message_holds_nobody_up(address: Path) -> None:
    with connect(address) as one, connect(address) as two:
        slow, other = Pipe(one), Pipe(two)
        assert isinstance(slow.receive(), Loaded)
        assert isinstance(other.receive(), Loaded)
        whole = b"".join(bytes(part) for part in pack(Ping()))
        one.sendall(whole[:7])
        other.send(Ping())
        assert next_report(other).events == ()
        one.sendall(whole[7:])
        assert next_report(slow).events == ()


def test_a_request_that_the_queue_has_no_place_for_is_refused_before_any_audio(address: Path) -> None:
    with connect(address) as one, connect(address) as two:
        first, second = Pipe(one), Pipe(two)
        assert isinstance(first.receive(), Loaded)
        assert isinstance(second.receive(), Loaded)
        first.send(live(1))
        while next_report(first).state.running < 1:
            pass
        second.send(live(1, "ada"))
        while not (report := next_report(first)).state.queued:
            pass
        assert report.state.queued == (Waiting("ada", 1.0),)
        first.send(RemoteSubmit.of(pending(2, client="ada")))
        while not (report := next_report(first)).events:
            pass
        ((number, event),) = report.events
        assert (number, report.state.left_queue) == (2, 2)
        assert isinstance(event, Failed)
        assert isinstance(event.error, Overloaded)
        assert event.error.retry_after_s >= 1
